//! What the user types in `tern chat`: lines, messages of several lines, and the history of both.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use rustyline::error::ReadlineError;
use rustyline::{Config, DefaultEditor};

use crate::error::{CliError, CliResult};

/// What begins and ends a text of several lines.
const QUOTES: &str = "\"\"\"";
/// Entries that the history keeps.
const MAX_ENTRIES: usize = 1000;
/// Bytes of an entry; a longer text is not kept.
const MAX_ENTRY: usize = 16 << 10;

/// What was typed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Typed {
    /// A line, which may be a command.
    Line(String),
    /// The text between quotes: a message.
    Block(String),
}

/// The line editor with its history.
pub(crate) struct Input {
    editor: DefaultEditor,
    /// Where the history is kept between conversations.
    history: Option<PathBuf>,
}

impl Input {
    /// With the history of this file, if there is one. A history that cannot be read or written is omitted:
    /// it is a convenience.
    pub(crate) fn open(history: Option<PathBuf>) -> CliResult<Input> {
        let failed = |e: ReadlineError| CliError::message(e.to_string());
        let config = Config::builder().max_history_size(MAX_ENTRIES).map_err(failed)?.build();
        let mut editor = DefaultEditor::with_config(config).map_err(failed)?;
        let history = history.filter(|file| {
            let folder =
                file.parent().map(|folder| DirBuilder::new().recursive(true).mode(0o700).create(folder));
            folder.is_some_and(|made| made.is_ok())
        });
        if let Some(file) = &history {
            let _ = editor.load_history(file);
        }
        Ok(Input { editor, history })
    }

    /// The width of the terminal, if the output is one.
    pub(crate) fn width(&mut self) -> Option<usize> {
        self.editor.dimensions().map(|(columns, _)| usize::from(columns)).filter(|columns| *columns > 0)
    }

    /// The next line or block; none at the end of the input.
    pub(crate) fn next(&mut self) -> CliResult<Option<Typed>> {
        loop {
            let mut text = match self.editor.readline("> ") {
                Ok(line) => line,
                Err(ReadlineError::Interrupted) => continue,
                Err(ReadlineError::Eof) => return Ok(None),
                Err(e) => return Err(CliError::message(e.to_string())),
            };
            let mut read = typed(&text);
            while read.is_none() {
                match self.editor.readline("... ") {
                    Ok(line) => text = text + "\n" + &line,
                    Err(ReadlineError::Interrupted) => break,
                    // the end of the input also ends the text
                    Err(ReadlineError::Eof) => text += QUOTES,
                    Err(e) => return Err(CliError::message(e.to_string())),
                }
                read = typed(&text);
            }
            if let Some(read) = read {
                self.remember(&text);
                return Ok(Some(read));
            }
        }
    }

    fn remember(&mut self, text: &str) {
        if text.trim().is_empty() || text.len() > MAX_ENTRY {
            return;
        }
        let _ = self.editor.add_history_entry(text);
        if let Some(file) = &self.history {
            let _ = self.editor.append_history(file);
        }
    }
}

/// What a text is; none if it has opening quotes and no closing ones yet. Quotes may follow `/system`.
fn typed(text: &str) -> Option<Typed> {
    let (command, quoted) = match text.trim_start().strip_prefix("/system ") {
        Some(rest) => ("/system ", rest),
        None => ("", text),
    };
    let Some(inside) = quoted.trim_start().strip_prefix(QUOTES) else {
        return Some(Typed::Line(text.to_string()));
    };
    let inside = inside.trim_end().strip_suffix(QUOTES)?;
    let inside = inside.strip_prefix('\n').unwrap_or(inside);
    let inside = inside.strip_suffix('\n').unwrap_or(inside);
    Some(match command {
        "" => Typed::Block(inside.to_string()),
        command => Typed::Line(format!("{command}{inside}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_history_is_kept_for_the_user_alone_and_bounded() {
        use std::os::unix::fs::PermissionsExt;

        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("state/tern/chat_history");
        let mut input = Input::open(Some(file.clone())).unwrap();
        for line in ["one", "two\nlines", "  ", &"x".repeat(MAX_ENTRY + 1)] {
            input.remember(line);
        }
        let entries = |input: &Input| input.editor.history().iter().cloned().collect::<Vec<String>>();
        let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&file), mode(file.parent().unwrap())), (0o600, 0o700));
        let mut later = Input::open(Some(file.clone())).unwrap();
        assert_eq!(entries(&later), ["one", "two\nlines"]);
        (0..MAX_ENTRIES).for_each(|i| later.remember(&format!("line {i}")));
        assert_eq!(std::fs::read_to_string(&file).unwrap().lines().count(), MAX_ENTRIES + 1, "and a head");
        assert!(entries(&Input::open(None).unwrap()).is_empty());
    }

    #[test]
    fn quotes_hold_a_message_of_several_lines() {
        let line = |text: &str| Some(Typed::Line(text.to_string()));
        let block = |text: &str| Some(Typed::Block(text.to_string()));
        assert_eq!(typed("hello"), line("hello"));
        assert_eq!(typed("\"\"\"one"), None);
        assert_eq!(typed("\"\"\"\n/one\n\n  two\n\"\"\""), block("/one\n\n  two"));
        assert_eq!(typed(" \"\"\"one\ntwo\"\"\" "), block("one\ntwo"));
        assert_eq!(typed("\"\"\"one\"\"\""), block("one"));
        assert_eq!(typed("\"\"\""), None, "the same quotes do not open and close");
        assert_eq!(typed("say \"\"\" now"), line("say \"\"\" now"));
        assert_eq!(typed("/system \"\"\"Be\nbrief.\"\"\""), line("/system Be\nbrief."));
        assert_eq!(typed("/system \"\"\"Be"), None);
    }
}
