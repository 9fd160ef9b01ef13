//! A running `tern serve` on a free port.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use super::Home;

/// A server, until it is dropped.
pub(crate) struct Server {
    child: Child,
    pub(crate) url: String,
    /// The lines that it prints after the one with its URL.
    lines: Receiver<String>,
}

impl Server {
    pub(crate) fn start(home: &Home, flags: &[&str]) -> Server {
        let common = ["serve", "--device", "cpu", "-t", "1", "--port", "0", "--log", "off"];
        let mut command = home.command(&[&common[..], flags].concat());
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let url = lines.find_map(|line| {
            Some(line.split_once("listening on ")?.1.split(' ').next().unwrap_or_default().to_string())
        });
        let (sender, receiver) = channel();
        // the server never waits for a reader
        thread::spawn(move || lines.for_each(|line| drop(sender.send(line))));
        Server { child, url: url.unwrap(), lines: receiver }
    }

    /// Host and port.
    pub(crate) fn address(&self) -> &str {
        self.url.trim_start_matches("http://")
    }

    /// Ends it as an operator does, and waits for its end.
    pub(crate) fn terminate(mut self) {
        let kill = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status();
        assert!(kill.unwrap().success());
        assert!(self.child.wait().unwrap().success());
    }

    /// The next line that it prints.
    pub(crate) fn line(&self) -> String {
        self.lines.recv_timeout(Duration::from_secs(60)).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
