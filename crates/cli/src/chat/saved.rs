//! Conversations in files: JSON with the messages as the OpenAI API has them.

use std::path::Path;

use serde_json::{Value, json};
use tern::Message;

/// Largest file that is read.
const MAX_BYTES: u64 = 64 << 20;

/// The file's text.
pub(crate) fn to_text(model: &str, messages: &[Message]) -> String {
    let messages: Vec<Value> =
        messages.iter().map(|message| json!({"role": message.role, "content": message.content})).collect();
    format!("{:#}\n", json!({"model": model, "messages": messages}))
}

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
        let (role, content) = (text("role")?, text("content")?);
        let expected = if turns.len() % 2 == 0 { "user" } else { "assistant" };
        match role {
            "system" if at == 0 => system = Some(content.to_string()),
            "user" if expected == role => turns.push(Message::user(content)),
            "assistant" if expected == role => turns.push(Message::assistant(content)),
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
    fn what_is_not_a_conversation_is_refused_with_the_place() {
        let error = |text: &str| parse(text).unwrap_err();
        assert_eq!(error("{}"), "messages: missing");
        assert_eq!(error(r#"{"messages": [{"role": "user"}]}"#), "messages[0].content: want a string");
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
