//! Text piped into the command, with a timeout for a stdin that is open but silent.

use std::io::{IsTerminal, Read};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use crate::error::{CliError, CliResult};

/// Maximum size of the text, more than any context holds.
const MAX_BYTES: u64 = 64 << 20;

/// How long to wait for the first byte.
#[derive(Clone, Copy)]
struct Waits {
    /// Time until a message tells the user that the command is waiting.
    notice_after: Duration,
    /// Time until stdin is ignored: supervisors and CI leave pipes open that have no writer.
    timeout: Duration,
}

const WAITS: Waits = Waits { notice_after: Duration::from_secs(2), timeout: Duration::from_secs(30) };

/// All of stdin, for the prompt `-`.
pub(crate) fn whole() -> CliResult<String> {
    read(std::io::stdin())
}

/// Text piped or redirected into stdin in addition to a prompt; empty for a terminal and for a silent pipe.
pub(crate) fn piped() -> CliResult<String> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        return Ok(String::new());
    }
    unless_silent(stdin, WAITS, |message| eprintln!("tern: {message}"))
}

/// Reads to the end, unless no byte arrives within the timeout. The thread of an abandoned reader
/// lives until the process ends.
fn unless_silent(
    mut input: impl Read + Send + 'static,
    waits: Waits,
    notify: impl Fn(&str),
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
        let _ = begun.send(()); // fails if the caller has timed out
        let text = match started {
            Ok(0) => Ok(String::new()),
            Ok(_) => read(first.as_slice().chain(input)),
            Err(e) => Err(broken(&e)),
        };
        let _ = ended.send(text);
    });
    reader.map_err(|e| CliError::message(format!("cannot start the thread that reads stdin: {e}")))?;
    let first = beginning.recv_timeout(waits.notice_after).or_else(|_| {
        notify("waiting for text on stdin; run with `< /dev/null` to skip it");
        beginning.recv_timeout(waits.timeout.saturating_sub(waits.notice_after))
    });
    if first == Err(RecvTimeoutError::Timeout) {
        notify(&format!(
            "no text on stdin within {:.0} s: continuing without it",
            waits.timeout.as_secs_f64()
        ));
        return Ok(String::new());
    }
    end.recv().map_err(|e| CliError::message(format!("stdin: {e}")))?
}

fn read(input: impl Read) -> CliResult<String> {
    let mut bytes = vec![];
    input.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|e| broken(&e))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(CliError::message(format!(
            "the text on stdin exceeds the limit of {} MiB",
            MAX_BYTES >> 20
        )));
    }
    String::from_utf8(bytes).map_err(|_| CliError::message("the text on stdin is not UTF-8"))
}

fn broken(error: &std::io::Error) -> CliError {
    CliError::message(format!("the text on stdin: {error}"))
}

/// A prompt followed by a blank line and the piped text.
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

    const SHORT: Waits =
        Waits { notice_after: Duration::from_millis(20), timeout: Duration::from_millis(60) };

    #[test]
    fn a_silent_pipe_is_abandoned_with_a_message() {
        let (silent, writer) = std::io::pipe().unwrap();
        let messages = RefCell::new(vec![]);
        let text = unless_silent(silent, SHORT, |s| messages.borrow_mut().push(s.to_string())).unwrap();
        assert_eq!(text, "");
        let messages = messages.borrow();
        assert!(messages[0].contains("run with `< /dev/null` to skip it"), "{messages:?}");
        assert!(messages[1].starts_with("no text on stdin within 0 s"), "{messages:?}");
        drop(writer);
    }

    #[test]
    fn a_pipe_with_a_first_byte_is_read_to_its_end() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(b"one ").unwrap();
        let rest = thread::spawn(move || {
            thread::sleep(SHORT.timeout * 3); // only the first byte has a time limit
            writer.write_all("zw\u{f6}lf\n".as_bytes()).unwrap();
        });
        assert_eq!(
            unless_silent(reader, Waits { notice_after: SHORT.timeout, ..SHORT }, |_| ()).unwrap(),
            "one zw\u{f6}lf\n"
        );
        rest.join().unwrap();
        assert_eq!(unless_silent(std::io::empty(), SHORT, |_| ()).unwrap(), "");
    }

    #[test]
    fn invalid_text_is_refused() {
        let error = |bytes: &'static [u8]| unless_silent(bytes, SHORT, |_| ()).unwrap_err().to_string();
        assert_eq!(error(b"\xff\xfe"), "the text on stdin is not UTF-8");
        let endless = unless_silent(std::io::repeat(b'x'), SHORT, |_| ()).unwrap_err().to_string();
        assert_eq!(endless, "the text on stdin exceeds the limit of 64 MiB");
    }

    #[test]
    fn a_blank_line_separates_prompt_and_text() {
        assert_eq!(joined("Sum up:", "one\ntwo\n\n"), "Sum up:\n\none\ntwo");
        assert_eq!(joined("Sum up:\n", "  one"), "Sum up:\n\n  one");
        assert_eq!(joined("Sum up: ", " \n\n"), "Sum up: ");
    }
}
