//! A line of input in `tern chat`: a message or a command.

/// What a command of `tern chat` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Set,
    System,
    Show,
    Image,
    Save,
    Load,
    Clear,
    Help,
    Exit,
}

/// What follows the name of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arguments {
    None,
    Required(&'static str),
    Optional(&'static str),
}

/// A command: its names, what follows them, and what it does.
struct Command {
    names: &'static [&'static str],
    arguments: Arguments,
    action: Action,
    does: &'static str,
}

const fn command(
    names: &'static [&'static str],
    arguments: Arguments,
    action: Action,
    does: &'static str,
) -> Command {
    Command { names, arguments, action, does }
}

const COMMANDS: &[Command] = &[
    command(
        &["/set"],
        Arguments::Optional("PARAMETER VALUE"),
        Action::Set,
        "sets a parameter; alone it lists all",
    ),
    command(
        &["/system"],
        Arguments::Optional("TEXT"),
        Action::System,
        "sets the system message; alone it shows it, and /system \"\" removes it",
    ),
    command(
        &["/show"],
        Arguments::None,
        Action::Show,
        "shows the model, its parameters and the used context",
    ),
    command(
        &["/image"],
        Arguments::Required("FILE"),
        Action::Image,
        "puts an image before the next message, as does its pasted path",
    ),
    command(&["/save"], Arguments::Required("FILE"), Action::Save, "writes the conversation to a file"),
    command(&["/load"], Arguments::Required("FILE"), Action::Load, "continues a conversation of a file"),
    command(&["/clear"], Arguments::None, Action::Clear, "starts a new conversation"),
    command(&["/help", "/?"], Arguments::None, Action::Help, "shows this help"),
    command(&["/bye", "/exit", "/quit"], Arguments::None, Action::Exit, "quits (as does Ctrl-D)"),
];

/// A parsed line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line<'a> {
    Empty,
    Message(&'a str),
    Command(Action, &'a str),
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
        let arguments = arguments.trim_start();
        let Some(command) = COMMANDS.iter().find(|command| command.names.contains(&name)) else {
            let names: Vec<&str> = COMMANDS.iter().map(|command| command.names[0]).collect();
            return Line::Refused(format!("unknown command {name}: want one of {}", names.join(", ")));
        };
        match command.arguments {
            Arguments::None if !arguments.is_empty() => {
                Line::Refused(format!("{name} takes no arguments: it {}", command.does))
            }
            Arguments::Required(what) if arguments.is_empty() => {
                Line::Refused(format!("{name} {what}: missing {what}"))
            }
            _ => Line::Command(command.action, arguments),
        }
    }
}

/// One line that names the most important commands.
pub(crate) const HINT: &str =
    "/help lists the commands, /bye quits, \"\"\" begins and ends a message of several lines";

/// All commands, one per line.
pub(crate) fn help() -> String {
    let row = |command: &Command| {
        let arguments = match command.arguments {
            Arguments::None => String::new(),
            Arguments::Required(what) => format!(" {what}"),
            Arguments::Optional(what) => format!(" [{what}]"),
        };
        format!("  {:30} {}\n", format!("{}{arguments}", command.names.join(", ")), command.does)
    };
    let commands: String = COMMANDS.iter().map(row).collect();
    let keys = "  \"\"\"                            begins and ends a message of several lines\n  \
                Ctrl-C                         stops an answer; Ctrl-D quits\n  \
                a space before /               sends a message that starts with /";
    commands + keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_never_sent_to_the_model() {
        assert_eq!(Line::parse("/clear "), Line::Command(Action::Clear, ""));
        for exit in ["/bye", "/quit", "/exit"] {
            assert_eq!(Line::parse(exit), Line::Command(Action::Exit, ""));
        }
        assert_eq!(Line::parse("/set temp  0.5"), Line::Command(Action::Set, "temp  0.5"));
        assert_eq!(Line::parse("/system Be\nbrief."), Line::Command(Action::System, "Be\nbrief."));
        let refused = |line: &str| match Line::parse(line) {
            Line::Refused(why) => why,
            other => panic!("{line}: {other:?}"),
        };
        assert_eq!(refused("/clear now"), "/clear takes no arguments: it starts a new conversation");
        assert_eq!(refused("/save"), "/save FILE: missing FILE");
        assert_eq!(
            refused("/retry"),
            "unknown command /retry: want one of /set, /system, /show, /image, /save, /load, /clear, /help, /bye"
        );
        assert!(refused("/").starts_with("unknown command /: "));
    }

    #[test]
    fn everything_else_is_a_message() {
        assert_eq!(Line::parse("  hello /clear \n"), Line::Message("hello /clear"));
        assert_eq!(Line::parse(" /usr/bin is what?"), Line::Message("/usr/bin is what?"));
        assert_eq!(Line::parse(" \t"), Line::Empty);
    }

    #[test]
    fn the_help_has_every_command_on_its_own_line() {
        let help = help();
        for command in COMMANDS {
            assert!(help.lines().any(|line| line.trim_start().starts_with(command.names[0])), "{help}");
        }
        assert!(help.lines().all(|line| line.len() <= 110), "{help}");
    }
}
