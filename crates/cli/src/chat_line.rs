//! A line that was written in `tern chat`: a message or a command.

/// What can be done beside talking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Clear,
    Help,
    Exit,
}

/// Names, and what each does. None takes an argument.
const COMMANDS: &[(&str, Command, &str)] = &[
    ("/clear", Command::Clear, "starts anew"),
    ("/help", Command::Help, "shows this"),
    ("/exit", Command::Exit, "leaves"),
    ("/quit", Command::Exit, "leaves too, as does Ctrl-D"),
];

/// A line, understood.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line<'a> {
    Empty,
    Message(&'a str),
    Command(Command),
    /// Not to be sent, and why.
    Refused(String),
}

impl Line<'_> {
    /// A line that begins with a slash is a command; with a space before the slash it is a message.
    pub(crate) fn parse(line: &str) -> Line<'_> {
        let text = line.trim();
        if text.is_empty() {
            return Line::Empty;
        }
        if !line.starts_with('/') {
            return Line::Message(text);
        }
        let (name, arguments) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        match COMMANDS.iter().find(|command| command.0 == name) {
            Some((_, command, _)) if arguments.is_empty() => Line::Command(*command),
            Some((name, _, does)) => Line::Refused(format!("usage: {name}, without arguments: it {does}")),
            None => Line::Refused(format!("{name} is no command: {}", help())),
        }
    }
}

/// All commands in a line.
pub(crate) fn help() -> String {
    let all: Vec<String> = COMMANDS.iter().map(|(name, _, does)| format!("{name} {does}")).collect();
    format!(
        "{}; Ctrl-C stops an answer; a message that begins with / needs a space before it",
        all.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_never_sent_to_the_model() {
        assert_eq!(Line::parse("/clear "), Line::Command(Command::Clear));
        assert_eq!(Line::parse("/quit"), Line::Command(Command::Exit));
        let refused = |line: &str| match Line::parse(line) {
            Line::Refused(why) => why,
            other => panic!("{line}: {other:?}"),
        };
        assert_eq!(refused("/clear now"), "usage: /clear, without arguments: it starts anew");
        assert!(refused("/set temperature 1").starts_with("/set is no command: /clear starts anew, /help "));
        assert!(refused("/").starts_with("/ is no command: "));
    }

    #[test]
    fn everything_else_is_a_message() {
        assert_eq!(Line::parse("  hello /clear \n"), Line::Message("hello /clear"));
        assert_eq!(Line::parse(" /usr/bin is what?"), Line::Message("/usr/bin is what?"));
        assert_eq!(Line::parse(" \t"), Line::Empty);
    }
}
