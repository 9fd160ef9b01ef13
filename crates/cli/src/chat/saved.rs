//! Conversations in files: JSON with the messages as the OpenAI API has them.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tern::Message;

/// Largest file that is read.
const MAX_BYTES: u64 = 64 << 20;

/// The file's text.
pub(crate) fn to_text(model: &str, messages: &[Message]) -> String {
    let message = |message: &Message| json!({"role": message.role, "content": content(message)});
    let messages: Vec<Value> = messages.iter().map(message).collect();
    format!("{:#}\n", json!({"model": model, "messages": messages}))
}

/// A string, or parts if there are images, which are in the file themselves.
fn content(message: &Message) -> Value {
    if message.images.is_empty() {
        return message.content.as_str().into();
    }
    let image = |image: &tern::Image| {
        let url = format!("{DATA}{}", STANDARD.encode(&image.bytes));
        json!({"type": "image_url", "image_url": {"url": url}})
    };
    let text = json!({"type": "text", "text": message.content});
    message.images.iter().map(image).chain([text]).collect()
}

/// The message of a user: a string, or images and then a text.
fn user(content: &Value, place: &str) -> Result<Message, String> {
    let Some(parts) = content.as_array() else {
        let text = content.as_str().ok_or_else(|| format!("{place}: want a string or parts"))?;
        return Ok(Message::user(text));
    };
    let mut message = Message::user("");
    for (at, part) in parts.iter().enumerate() {
        let wrong = |want: &str| format!("{place}[{at}]: want {want}");
        match part["type"].as_str() {
            Some("text") => message.push_text(part["text"].as_str().ok_or_else(|| wrong("a text"))?),
            Some("image_url") => {
                let url = part["image_url"]["url"].as_str().and_then(|url| url.strip_prefix("data:image/"));
                let data = url.and_then(|url| Some(url.split_once(";base64,")?.1));
                let bytes = data.and_then(|data| STANDARD.decode(data).ok());
                message.push_image(bytes.ok_or_else(|| wrong("a data URI of an image in base64"))?);
            }
            _ => return Err(wrong("a text or an image_url")),
        }
    }
    Ok(message)
}

/// What comes before the data of an image, whose format is seen from its bytes.
const DATA: &str = "data:image/png;base64,";

/// Writes a conversation. A file that is not one is not overwritten.
pub(crate) fn save(file: &Path, model: &str, messages: &[Message]) -> Result<(), String> {
    if file.exists() && load(file).is_err() {
        return Err(format!("{} exists and is not a conversation: choose another name", file.display()));
    }
    std::fs::write(file, to_text(model, messages)).map_err(|e| format!("{}: {e}", file.display()))
}

/// Reads a conversation: the system message, if any, and the others.
pub(crate) fn load(file: &Path) -> Result<(Option<String>, Vec<Message>), String> {
    let failed = |why: &dyn std::fmt::Display| format!("{}: {why}", file.display());
    let metadata = file.metadata().map_err(|e| failed(&e))?;
    if !metadata.is_file() || metadata.len() > MAX_BYTES {
        return Err(failed(&"not a conversation: want a JSON file of at most 64 MiB"));
    }
    let text = std::fs::read_to_string(file).map_err(|e| failed(&e))?;
    parse(&text).map_err(|why| failed(&format_args!("not a conversation: {why}")))
}

fn parse(text: &str) -> Result<(Option<String>, Vec<Message>), String> {
    let whole: Value = serde_json::from_str(text).map_err(|e| e.to_string())?;
    // a list of messages alone is what other programs write
    let messages = whole.get("messages").unwrap_or(&whole).as_array().ok_or("messages: missing")?;
    let mut system = None;
    let mut turns = vec![];
    for (at, message) in messages.iter().enumerate() {
        let text =
            |key: &str| message[key].as_str().ok_or_else(|| format!("messages[{at}].{key}: want a string"));
        let (role, content) = (text("role")?, || text("content"));
        let expected = if turns.len() % 2 == 0 { "user" } else { "assistant" };
        match role {
            "system" if at == 0 => system = Some(content()?.to_string()),
            "user" if expected == role => {
                turns.push(user(&message["content"], &format!("messages[{at}].content"))?);
            }
            "assistant" if expected == role => turns.push(Message::assistant(content()?)),
            _ => return Err(format!("messages[{at}].role: want {expected}, got {role}")),
        }
    }
    match turns.len() % 2 {
        0 => Ok((system, turns)),
        _ => Err("messages: the last one must be of the assistant".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("talk.json");
        let messages =
            [Message::system("Be brief."), Message::user("Hi\n"), Message::assistant("\"Hello.\"")];
        for _ in 0..2 {
            save(&file, "smollm2", &messages).unwrap(); // a conversation may be overwritten
            let (system, turns) = load(&file).unwrap();
            assert_eq!((system.as_deref(), turns.as_slice()), (Some("Be brief."), &messages[1..]));
        }
        let notes = folder.path().join("notes.txt");
        std::fs::write(&notes, "precious").unwrap();
        let error = save(&notes, "smollm2", &messages).unwrap_err();
        assert!(
            error.ends_with("notes.txt exists and is not a conversation: choose another name"),
            "{error}"
        );
        assert_eq!(std::fs::read_to_string(&notes).unwrap(), "precious");
        assert!(load(folder.path()).unwrap_err().contains("not a conversation"));
    }

    #[test]
    fn images_are_saved_with_their_messages() {
        let messages = [Message::user("What?").image(vec![1, 2]).image(vec![3]), Message::assistant("That.")];
        let (_, turns) = parse(&to_text("m", &messages)).unwrap();
        assert_eq!(turns, messages);
        let bad =
            r#"[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/"}}]}]"#;
        assert_eq!(parse(bad).unwrap_err(), "messages[0].content[0]: want a data URI of an image in base64");
    }

    #[test]
    fn what_is_not_a_conversation_is_refused_with_the_place() {
        let error = |text: &str| parse(text).unwrap_err();
        assert_eq!(error("{}"), "messages: missing");
        assert_eq!(
            error(r#"{"messages": [{"role": "user"}]}"#),
            "messages[0].content: want a string or parts"
        );
        assert_eq!(
            error(r#"[{"role": "user", "content": "a"}]"#),
            "messages: the last one must be of the assistant"
        );
        let twice = r#"[{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]"#;
        assert_eq!(error(twice), "messages[1].role: want assistant, got user");
        assert_eq!(error(r#"[{"role": "tool", "content": "a"}]"#), "messages[0].role: want user, got tool");
        assert_eq!(parse("[]"), Ok((None, vec![])));
    }
}
