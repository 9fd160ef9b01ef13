//! A line of input in `tern chat`: a message or a command.

/// A command of `tern chat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Clear,
    Help,
    Exit,
}

/// Names and descriptions. No command takes arguments.
const COMMANDS: &[(&str, Command, &str)] = &[
    ("/clear", Command::Clear, "starts a new conversation"),
    ("/help", Command::Help, "shows this help"),
    ("/exit", Command::Exit, "quits"),
    ("/quit", Command::Exit, "quits (as does Ctrl-D)"),
];

/// A parsed line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line<'a> {
    Empty,
    Message(&'a str),
    Command(Command),
    /// Not sent, and why.
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
            Some((name, _, does)) => Line::Refused(format!("{name} takes no arguments: it {does}")),
            None => Line::Refused(format!("unknown command {name}: {}", help())),
        }
    }
}

/// All commands on one line.
pub(crate) fn help() -> String {
    let all: Vec<String> = COMMANDS.iter().map(|(name, _, does)| format!("{name} {does}")).collect();
    format!("{}; Ctrl-C stops an answer; put a space before a message that starts with /", all.join(", "))
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
        assert_eq!(refused("/clear now"), "/clear takes no arguments: it starts a new conversation");
        assert!(
            refused("/set temperature 1")
                .starts_with("unknown command /set: /clear starts a new conversation, /help ")
        );
        assert!(refused("/").starts_with("unknown command /: "));
    }

    #[test]
    fn everything_else_is_a_message() {
        assert_eq!(Line::parse("  hello /clear \n"), Line::Message("hello /clear"));
        assert_eq!(Line::parse(" /usr/bin is what?"), Line::Message("/usr/bin is what?"));
        assert_eq!(Line::parse(" \t"), Line::Empty);
    }
}
