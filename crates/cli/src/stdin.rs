//! Text that is piped into the command, and stdin that is open and silent.

use std::io::{IsTerminal, Read};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use crate::error::{CliError, CliResult};

/// More than any context holds.
const MOST_BYTES: u64 = 64 << 20;
/// After this long without a byte, what is waited for is said.
const QUIET: Duration = Duration::from_secs(2);
/// After this long without a byte, a pipe counts as one that nobody writes to: supervisors and CI leave such open.
const SILENT: Duration = Duration::from_secs(30);

/// All of stdin, which the prompt `-` asks for.
pub(crate) fn whole() -> CliResult<String> {
    read(std::io::stdin())
}

/// What was piped or redirected into stdin beside a prompt; empty for a terminal and for a pipe that stays silent.
pub(crate) fn piped() -> CliResult<String> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        return Ok(String::new());
    }
    unless_silent(stdin, (QUIET, SILENT), |sentence| eprintln!("tern: {sentence}"))
}

/// Reads to the end, unless not one byte came within the second of the waits. A reader that is given up keeps its
/// thread until the process ends.
fn unless_silent(
    mut input: impl Read + Send + 'static,
    (quiet, silent): (Duration, Duration),
    say: impl Fn(&str),
) -> CliResult<String> {
    let (begun, beginning) = channel();
    let (ended, end) = channel();
    let reader = thread::Builder::new().name("tern-stdin".into()).spawn(move || {
        let mut first = [0];
        let started = loop {
            match input.read(&mut first) {
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        let _ = begun.send(()); // nobody waits any more: what follows is in vain too
        let text = match started {
            Ok(0) => Ok(String::new()),
            Ok(_) => read(first.as_slice().chain(input)),
            Err(e) => Err(broken(&e)),
        };
        let _ = ended.send(text);
    });
    reader.map_err(|e| CliError::said(format!("the thread that reads stdin did not start: {e}")))?;
    let first = beginning.recv_timeout(quiet).or_else(|_| {
        say("waiting for text on stdin, which is open; `< /dev/null` runs without it");
        beginning.recv_timeout(silent.saturating_sub(quiet))
    });
    if first == Err(RecvTimeoutError::Timeout) {
        say(&format!("nothing came on stdin within {:.0} s: going on without it", silent.as_secs_f64()));
        return Ok(String::new());
    }
    end.recv().map_err(|e| CliError::said(format!("stdin: {e}")))?
}

fn read(input: impl Read) -> CliResult<String> {
    let mut bytes = vec![];
    input.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(|e| broken(&e))?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(CliError::said(format!("the text on stdin has more than {} MiB", MOST_BYTES >> 20)));
    }
    String::from_utf8(bytes).map_err(|_| CliError::said("the text on stdin is not UTF-8"))
}

fn broken(error: &std::io::Error) -> CliError {
    CliError::said(format!("the text on stdin: {error}"))
}

/// A prompt and the text piped in beside it, with a blank line between.
pub(crate) fn joined(prompt: &str, piped: &str) -> String {
    match piped.trim_end_matches(['\n', '\r']) {
        text if text.trim().is_empty() => prompt.to_string(),
        text => format!("{}\n\n{text}", prompt.trim_end_matches(['\n', '\r'])),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::io::Write;

    use super::*;

    const SHORT: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(60));

    #[test]
    fn a_silent_pipe_is_given_up_and_said_so() {
        let (silent, writer) = std::io::pipe().unwrap();
        let said = RefCell::new(vec![]);
        let text = unless_silent(silent, SHORT, |s| said.borrow_mut().push(s.to_string())).unwrap();
        assert_eq!(text, "");
        let said = said.borrow();
        assert!(said[0].contains("`< /dev/null` runs without it"), "{said:?}");
        assert!(said[1].starts_with("nothing came on stdin within 0 s"), "{said:?}");
        drop(writer);
    }

    #[test]
    fn a_pipe_that_begins_is_read_to_its_end() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(b"one ").unwrap();
        let rest = thread::spawn(move || {
            thread::sleep(SHORT.1 * 3); // longer than the wait: only the first byte has a limit
            writer.write_all("zw\u{f6}lf\n".as_bytes()).unwrap();
        });
        assert_eq!(unless_silent(reader, (SHORT.1, SHORT.1), |_| ()).unwrap(), "one zw\u{f6}lf\n");
        rest.join().unwrap();
        assert_eq!(unless_silent(std::io::empty(), SHORT, |_| ()).unwrap(), "");
    }

    #[test]
    fn what_is_no_text_is_refused() {
        let said = |bytes: &'static [u8]| unless_silent(bytes, SHORT, |_| ()).unwrap_err().to_string();
        assert_eq!(said(b"\xff\xfe"), "the text on stdin is not UTF-8");
        let endless = unless_silent(std::io::repeat(b'x'), SHORT, |_| ()).unwrap_err().to_string();
        assert_eq!(endless, "the text on stdin has more than 64 MiB");
    }

    #[test]
    fn a_blank_line_stands_between() {
        assert_eq!(joined("Sum up:", "one\ntwo\n\n"), "Sum up:\n\none\ntwo");
        assert_eq!(joined("Sum up:\n", "  one"), "Sum up:\n\n  one");
        assert_eq!(joined("Sum up: ", " \n\n"), "Sum up: ");
    }
}
