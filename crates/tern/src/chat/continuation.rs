//! The continuation of a conversation's last message: the rendered text up to the end of its content.

use tern_text::{ChatText, ReasoningStyle};

use super::Message;

/// Cuts a rendered conversation after the content of its last message; an error says
/// why it cannot be continued.
///
/// Templates may trim the content. Its text is searched only in what came from the request: the template's
/// own text may contain the same words.
pub(super) fn cut(chat: &mut ChatText, last: &Message) -> Result<(), &'static str> {
    if !last.tool_calls.is_empty() {
        return Err("it has tool calls");
    }
    let (begin, trimmed) = (last.content.trim_start(), last.content.trim());
    if trimmed.is_empty() {
        return Err("it has no content");
    }
    let changed = "the chat template changes its content";
    let found = chat
        .user
        .iter()
        .rev()
        .find_map(|range| chat.text[range.clone()].rfind(trimmed).map(|at| range.start + at));
    let start = found.ok_or(changed)?;
    // with the space at its end, if the template has kept it
    let end = start + if chat.text[start..].starts_with(begin) { begin.len() } else { trimmed.len() };
    chat.text.truncate(end);
    chat.user.retain(|range| range.start < end);
    if let Some(range) = chat.user.last_mut() {
        range.end = range.end.min(end);
    }
    Ok(())
}

/// The begin of reasoning that a content has not ended.
pub(super) fn open_reasoning(content: &str, style: Option<ReasoningStyle>) -> Option<&'static str> {
    let style = style?;
    let begun = content.rfind(style.begin)?;
    (!content[begun..].contains(style.end)).then_some(style.begin)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ToolCall;

    fn rendered(parts: &[(&str, bool)]) -> ChatText {
        let mut chat = ChatText::default();
        for (text, user) in parts {
            let start = chat.text.len();
            chat.text.push_str(text);
            chat.user.extend(user.then_some(start..chat.text.len()));
        }
        chat
    }

    #[test]
    fn the_text_ends_with_the_content() {
        let parts =
            [("<user>", false), ("Hi", true), ("</s><bot>", false), ("Well, ", true), ("</s>Well, ", false)];
        let mut chat = rendered(&parts);
        cut(&mut chat, &Message::assistant("Well, ")).unwrap();
        assert_eq!(chat, rendered(&parts[..4]));
        // trimmed by the template, at both ends
        let parts = [("<bot>", false), ("Well,", true), ("</s>", false)];
        let mut chat = rendered(&parts);
        cut(&mut chat, &Message::assistant("\n Well, ")).unwrap();
        assert_eq!(chat, rendered(&parts[..2]));
    }

    #[test]
    fn what_cannot_be_continued_is_refused() {
        let mut chat = rendered(&[("a", false), ("b", true)]);
        assert_eq!(cut(&mut chat, &Message::assistant(" ")), Err("it has no content"));
        assert_eq!(cut(&mut chat, &Message::assistant("a")), Err("the chat template changes its content"));
        let calls = Message { tool_calls: vec![ToolCall::new("f", "{}")], ..Message::assistant("b") };
        assert_eq!(cut(&mut chat, &calls), Err("it has tool calls"));
    }

    #[test]
    fn reasoning_may_be_open() {
        let style = Some(ReasoningStyle { begin: "<think>", end: "</think>", dropped: &[] });
        assert_eq!(open_reasoning("<think>Hm", style), Some("<think>"));
        assert_eq!(open_reasoning("<think>Hm</think>So", style), None);
        assert_eq!(open_reasoning("So", style), None);
        assert_eq!(open_reasoning("<think>Hm", None), None);
    }
}
