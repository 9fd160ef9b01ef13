//! Bodies of `multipart/form-data`, parsed as they arrive: the parts of a form, one after the other.

use axum::http::{HeaderMap, header};

use crate::http::error::{ApiError, Result};

/// Maximum bytes of the headers of a part.
const MAX_HEAD: usize = 8 << 10;
/// Maximum number of parts.
const MAX_PARTS: usize = 64;
/// Maximum characters of a boundary, as RFC 2046 says.
const MAX_BOUNDARY: usize = 70;

/// A piece of a form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// A part begins.
    Part(PartHead),
    /// Bytes of the part that began last.
    Data(Vec<u8>),
}

/// The name of a part, and of its file if it has one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PartHead {
    pub(crate) name: String,
    pub(crate) filename: Option<String>,
}

/// The parser. The pieces do not depend on how the bytes arrive, except for the division of data.
pub(crate) struct Multipart {
    /// What separates parts: a line feed, two dashes and the boundary.
    delimiter: Vec<u8>,
    /// Bytes that are not parsed yet.
    buffer: Vec<u8>,
    state: State,
    parts: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the first part.
    Preamble,
    /// After a delimiter.
    Delimiter,
    Head,
    Data,
    /// After the last part.
    End,
}

impl Multipart {
    /// The parser of a body with these headers.
    pub(crate) fn new(headers: &HeaderMap) -> Result<Multipart> {
        let given = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let (kind, parameters) = given.split_once(';').unwrap_or((given, ""));
        let boundary =
            parameter(parameters, "boundary").filter(|text| (1..=MAX_BOUNDARY).contains(&text.len()));
        match boundary {
            Some(boundary) if kind.trim().eq_ignore_ascii_case("multipart/form-data") => Ok(Multipart {
                delimiter: format!("\r\n--{boundary}").into_bytes(),
                buffer: b"\r\n".to_vec(), // the first delimiter may begin the body
                state: State::Preamble,
                parts: 0,
            }),
            _ => Err(broken("expected the content type multipart/form-data with a boundary")),
        }
    }

    /// Parses the next bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<Vec<Piece>> {
        if self.state == State::End {
            return Ok(vec![]);
        }
        self.buffer.extend_from_slice(bytes);
        let mut pieces = vec![];
        while self.step(&mut pieces)? {}
        Ok(pieces)
    }

    /// Checks that the form is complete.
    pub(crate) fn end(&self) -> Result<()> {
        match self.state {
            State::End => Ok(()),
            _ => Err(broken("the form ends before its last boundary")),
        }
    }

    /// Parses one element of the buffer; false if more bytes are needed.
    fn step(&mut self, pieces: &mut Vec<Piece>) -> Result<bool> {
        match self.state {
            State::Preamble | State::Data => {
                let found = find(&self.buffer, &self.delimiter);
                // the end may be the beginning of a delimiter
                let kept = self.delimiter.len() - 1;
                let len = found.unwrap_or(self.buffer.len().saturating_sub(kept));
                let data: Vec<u8> = self.buffer.drain(..len).collect();
                if self.state == State::Data && !data.is_empty() {
                    pieces.push(Piece::Data(data));
                }
                if found.is_some() {
                    self.buffer.drain(..self.delimiter.len());
                    self.state = State::Delimiter;
                }
                Ok(found.is_some())
            }
            State::Delimiter => {
                if self.buffer.starts_with(b"--") {
                    self.state = State::End;
                    self.buffer = vec![];
                    return Ok(false);
                }
                let Some(end) = find(&self.buffer, b"\r\n") else {
                    return if self.buffer.len() > MAX_HEAD {
                        Err(broken("a boundary has no end"))
                    } else {
                        Ok(false)
                    };
                };
                if !self.buffer[..end].iter().all(|byte| b" \t".contains(byte)) {
                    return Err(broken("a boundary is followed by other text"));
                }
                self.buffer.drain(..end); // the head begins with this line feed
                self.parts += 1;
                if self.parts > MAX_PARTS {
                    return Err(broken(&format!("more than {MAX_PARTS} parts")));
                }
                self.state = State::Head;
                Ok(true)
            }
            State::Head => {
                let Some(end) = find(&self.buffer, b"\r\n\r\n") else {
                    return match self.buffer.len() > MAX_HEAD {
                        true => Err(broken(&format!("the headers of a part exceed {MAX_HEAD} bytes"))),
                        false => Ok(false),
                    };
                };
                let head: Vec<u8> = self.buffer.drain(..end + 4).collect();
                pieces.push(Piece::Part(part_head(&head[..end.min(MAX_HEAD)])?));
                self.state = State::Data;
                Ok(true)
            }
            State::End => Ok(false),
        }
    }
}

fn broken(why: &str) -> ApiError {
    ApiError::new(axum::http::StatusCode::BAD_REQUEST, format!("the request body is not a form: {why}"))
}

/// The position of a text that begins with a carriage return.
fn find(bytes: &[u8], text: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        at += bytes[at..].iter().position(|byte| *byte == b'\r')?;
        if bytes[at..].starts_with(text) {
            return Some(at);
        }
        at += 1;
    }
}

/// The names in the headers of a part.
fn part_head(head: &[u8]) -> Result<PartHead> {
    let head = std::str::from_utf8(head).map_err(|_| broken("the headers of a part are not UTF-8"))?;
    let disposition = head.split("\r\n").find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim().eq_ignore_ascii_case("content-disposition").then_some(value)
    });
    let parameters = disposition.and_then(|value| value.split_once(';')).map_or("", |(_, rest)| rest);
    let name = parameter(parameters, "name").ok_or_else(|| broken("a part has no name"))?;
    Ok(PartHead { name, filename: parameter(parameters, "filename") })
}

/// A parameter of a header: a token, or a quoted string.
fn parameter(text: &str, wanted: &str) -> Option<String> {
    let mut rest = text;
    loop {
        let (name, after) = rest.trim_start_matches([' ', '\t', ';']).split_once('=')?;
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => quoted_string(quoted)?,
            None => {
                let end = after.find(';').unwrap_or(after.len());
                (after[..end].trim().to_owned(), &after[end..])
            }
        };
        if name.trim().eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
        rest = after;
    }
}

/// The text up to a quote, and what follows it. Browsers escape a quote as `%22`, which stays so.
fn quoted_string(text: &str) -> Option<(String, &str)> {
    let (mut value, mut chars) = (String::new(), text.char_indices());
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            // of a path on Windows the backslashes stay
            '\\' if text[at + 1..].starts_with(['"', '\\']) => value.extend(chars.next().map(|(_, c)| c)),
            c => value.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn parser(kind: &str) -> Result<Multipart> {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_str(kind).unwrap());
        Multipart::new(&headers)
    }

    /// The parts of a body that arrives in pieces of `size` bytes.
    fn parts(body: &[u8], size: usize) -> Result<Vec<(PartHead, Vec<u8>)>> {
        let mut parser = parser("multipart/form-data; boundary=\"b-1\"").unwrap();
        let mut parts: Vec<(PartHead, Vec<u8>)> = vec![];
        for bytes in body.chunks(size) {
            for piece in parser.push(bytes)? {
                match piece {
                    Piece::Part(head) => parts.push((head, vec![])),
                    Piece::Data(data) => parts.last_mut().unwrap().1.extend(data),
                }
            }
        }
        parser.end().map(|()| parts)
    }

    const BODY: &[u8] = b"preamble\r\n--b-1\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--b-1 \r\n\
        content-type: application/jsonl\r\ncontent-disposition: form-data; filename=\"a \\\"b\\\" \xc3\xa9.jsonl\"; name=file\r\n\r\n\
        {}\r\n--b-2\r\n-\r\n--b-\r\r\n\n\r\n--b-1\r\nContent-Disposition: form-data; name=\"empty\"\r\n\r\n\r\n--b-1--\r\nepilogue";

    #[test]
    fn parts_do_not_depend_on_how_bytes_arrive() {
        for size in 1..BODY.len() + 1 {
            let parts = parts(BODY, size).unwrap();
            let got: Vec<(&str, Option<&str>, &[u8])> = parts
                .iter()
                .map(|(head, data)| (&head.name[..], head.filename.as_deref(), &data[..]))
                .collect();
            let want: [(&str, Option<&str>, &[u8]); 3] = [
                ("purpose", None, b"batch"),
                ("file", Some("a \"b\" \u{e9}.jsonl"), b"{}\r\n--b-2\r\n-\r\n--b-\r\r\n\n"),
                ("empty", None, b""),
            ];
            assert_eq!(got, want, "{size}");
        }
    }

    #[test]
    fn broken_forms_are_refused() {
        for (body, want) in [
            (&b""[..], "the form ends before its last boundary"),
            (
                b"--b-1\r\nContent-Disposition: form-data; name=\"x\"\r\n\r\nabc",
                "the form ends before its last boundary",
            ),
            (b"--b-1\r\n\r\n\r\n--b-1--", "a part has no name"),
            (b"--b-1\r\nContent-Disposition: form-data; name=\"x\r\n\r\n\r\n--b-1--", "a part has no name"),
            (b"--b-1x\r\n", "a boundary is followed by other text"),
        ] {
            let error = parts(body, 3).unwrap_err();
            assert_eq!(error.message, format!("the request body is not a form: {want}"));
            assert_eq!(error.status, 400);
        }
        let long = [&b"--b-1\r\n"[..], &vec![b'x'; MAX_HEAD + 9]].concat();
        assert!(parts(&long, 100).unwrap_err().message.ends_with("exceed 8192 bytes"));
        let part = b"--b-1\r\nContent-Disposition: form-data; name=x\r\n\r\n\r\n";
        assert!(parts(&part.repeat(MAX_PARTS + 1), 99).unwrap_err().message.ends_with("more than 64 parts"));
        for kind in [
            "application/json",
            "multipart/form-data",
            "multipart/form-data; boundary=",
            "multipart/mixed; boundary=x",
        ] {
            assert!(parser(kind).is_err(), "{kind}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(body: Vec<u8>, size in 1_usize..40) {
            let _ = parts(&body, size);
            let mut whole = b"--b-1\r\nContent-Disposition: form-data; name=f\r\n\r\n".to_vec();
            whole.extend_from_slice(&body);
            whole.extend_from_slice(b"\r\n--b-1--");
            let parsed = parts(&whole, size).unwrap();
            prop_assert!(parsed.len() > 1 || parsed[0].1 == body);
        }
    }
}
