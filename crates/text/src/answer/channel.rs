//! The header of a message in an answer of several messages: it tells what the message is.

use super::call_header::name_in;
use crate::markup::ChannelStyle;
use crate::tool_schemas::ToolSchemas;

/// Limit in bytes of a header.
const LONGEST: usize = 256;

/// What a text is.
#[derive(Debug, PartialEq)]
pub(super) enum Header {
    /// Unknown: more text is needed.
    Wait,
    /// Not a header.
    Not,
    /// A header of this many bytes.
    Of(Message, usize),
}

/// What a message is.
#[derive(Debug, PartialEq)]
pub(super) enum Message {
    Reasoning,
    Content,
    /// A call of this function.
    Call(String),
}

/// The header at the start of a text.
pub(super) fn header(text: &str, style: &ChannelStyle, tools: &ToolSchemas) -> Header {
    if style.start.starts_with(text) && style.start != text {
        return Header::Wait;
    }
    let after_start = text.strip_prefix(style.start);
    let header = after_start.unwrap_or(text);
    if style.recipients {
        return recipient(header, style, tools).after(text.len() - header.len());
    }
    let body = header.trim_ascii_start();
    if !style.headers.iter().any(|begin| body.starts_with(begin)) {
        let may_begin = style.headers.iter().any(|begin| begin.starts_with(body));
        let short = header.len() - body.len() < LONGEST;
        return if may_begin && short { Header::Wait } else { Header::Not };
    }
    let Some(length) = header.find(style.message) else {
        let ended = style.ends.iter().any(|end| header.contains(end));
        // the end may be a part of the marker
        let long = header.len() >= LONGEST + style.message.len();
        return if ended || long { Header::Not } else { Header::Wait };
    };
    let (header, length) = (&header[..length], text.len() - header.len() + length + style.message.len());
    if header.len() > LONGEST || style.ends.iter().any(|end| header.contains(end)) {
        return Header::Not;
    }
    let call = header.split_once(style.calls).filter(|_| !style.calls.is_empty());
    let message = match call.and_then(|(_, name)| name_in(name, "")) {
        Some(name) => Message::Call(name),
        None if header.contains(style.reasoning) => Message::Reasoning,
        None => Message::Content,
    };
    Header::Of(message, length)
}

/// A header that is only a recipient: that of the answer, or a tool.
fn recipient(header: &str, style: &ChannelStyle, tools: &ToolSchemas) -> Header {
    if header.starts_with(style.answer) {
        return Header::Of(Message::Content, style.answer.len());
    }
    match header.split_once(style.message) {
        Some((name, _)) if tools.has(name) => {
            Header::Of(Message::Call(name.to_owned()), name.len() + style.message.len())
        }
        None if tools.begins(header) || style.answer.starts_with(header) => Header::Wait,
        _ => Header::Not,
    }
}

impl Header {
    /// The same header after this many more bytes.
    fn after(self, bytes: usize) -> Header {
        match self {
            Header::Of(message, length) => Header::Of(message, bytes + length),
            other => other,
        }
    }
}
