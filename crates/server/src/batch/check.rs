//! The first pass over the input of a batch: every line is a request, and no `custom_id` occurs twice.

use std::collections::HashSet;
use std::path::PathBuf;

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::error::{BatchError, LineError};
use super::line::BatchLine;
use super::lines::Lines;

/// Lines that are named, of those that are wrong.
const MAX_ERRORS: usize = 100;

/// What the lines of a batch must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchRules {
    /// The only route that lines may name; without it any that batches have.
    pub endpoint: Option<&'static str>,
    /// Maximum number of lines.
    pub max_lines: usize,
    /// Maximum bytes of a line.
    pub max_line_bytes: usize,
}

impl Default for BatchRules {
    /// Any route, any number of lines, 16 MiB per line.
    fn default() -> BatchRules {
        BatchRules { endpoint: None, max_lines: usize::MAX, max_line_bytes: 16 << 20 }
    }
}

/// What stands for a `custom_id`: 16 bytes of its digest, so that millions fit in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct IdDigest([u8; 16]);

impl IdDigest {
    pub(super) fn of(custom_id: &str) -> IdDigest {
        let mut digest = [0; 16];
        digest.copy_from_slice(&Sha256::digest(custom_id)[..16]);
        IdDigest(digest)
    }
}

/// An input without errors.
pub(super) struct Checked {
    pub(super) ids: HashSet<IdDigest>,
    /// The model that the first line names.
    pub(super) model: Option<String>,
}

/// Reads all lines; if some are wrong, the error has the first of them.
pub(super) fn check(mut lines: Lines, rules: &BatchRules) -> Result<Checked, BatchError> {
    let mut checked = Checked { ids: HashSet::new(), model: None };
    let mut wrong = Wrong { file: lines.file().into(), errors: vec![], count: 0 };
    let mut read = 0;
    while let Some(text) = lines.next()? {
        read += 1;
        let line = text.number;
        if read > rules.max_lines {
            let message = format!("more lines than the limit of {}", rules.max_lines);
            wrong.add(LineError { line, code: "too_many_lines", param: None, message });
            break;
        }
        match BatchLine::parse(&text, rules) {
            Err(error) => wrong.add(error),
            Ok(parsed) => {
                if read == 1 {
                    checked.model = parsed.body.get("model").and_then(Value::as_str).map(str::to_owned);
                }
                if !checked.ids.insert(IdDigest::of(&parsed.custom_id)) {
                    let message = format!(
                        "custom_id: {:?} is that of an earlier line; every line needs its own",
                        parsed.custom_id
                    );
                    let (code, param) = ("duplicate_custom_id", Some("custom_id"));
                    wrong.add(LineError { line, code, param, message });
                }
            }
        }
    }
    if read == 0 {
        let message = "the file has no lines; expected one request per line".into();
        wrong.add(LineError { line: 1, code: "empty_file", param: None, message });
    }
    wrong.result().map(|()| checked)
}

struct Wrong {
    file: PathBuf,
    errors: Vec<LineError>,
    count: usize,
}

impl Wrong {
    fn add(&mut self, error: LineError) {
        self.count += 1;
        if self.errors.len() < MAX_ERRORS {
            self.errors.push(error);
        }
    }

    fn result(self) -> Result<(), BatchError> {
        let Wrong { file, errors, count } = self;
        if errors.is_empty() { Ok(()) } else { Err(BatchError::Lines { file, errors, count }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(text: &str, rules: &BatchRules) -> Result<Checked, BatchError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("in.jsonl");
        std::fs::write(&path, text).unwrap();
        check(Lines::open(&path, rules.max_line_bytes).unwrap(), rules)
    }

    fn line(id: &str) -> String {
        format!(
            "{{\"custom_id\": {id:?}, \"url\": \"/v1/completions\", \"body\": {{\"model\": \"m-{id}\"}}}}\n"
        )
    }

    fn refusal(text: &str, rules: &BatchRules) -> (String, Vec<(usize, &'static str)>) {
        match checked(text, rules) {
            Err(BatchError::Lines { errors, count, file }) => {
                let codes = errors.iter().map(|error| (error.line, error.code)).collect();
                let name = file.display().to_string();
                let error = BatchError::Lines { file, errors, count }.to_string();
                (error.replace(&name, "IN"), codes)
            }
            other => panic!("{:?}", other.map(|checked| checked.ids.len())),
        }
    }

    #[test]
    fn every_line_has_its_own_id() {
        let rules = BatchRules::default();
        let good = checked(&(line("a") + "\n" + &line("b")), &rules).unwrap();
        assert_eq!((good.ids.len(), good.model.as_deref()), (2, Some("m-a")));
        let (message, codes) = refusal(&(line("a") + &line("b") + &line("a") + "[]\n" + &line("b")), &rules);
        assert_eq!(codes, [(3, "duplicate_custom_id"), (4, "invalid_json_line"), (5, "duplicate_custom_id")]);
        let want = "IN: line 3: custom_id: \"a\" is that of an earlier line; every line needs its own (and 2 more lines are wrong)";
        assert_eq!(message, want);
        assert_eq!(refusal("\n", &rules).1, [(1, "empty_file")]);
    }

    #[test]
    fn limits_are_exact() {
        let text = line("a") + &line("b");
        let rules = BatchRules { max_lines: 2, max_line_bytes: line("a").len() - 1, ..BatchRules::default() };
        assert_eq!(checked(&text, &rules).unwrap().ids.len(), 2);
        let fewer = BatchRules { max_lines: 1, ..rules.clone() };
        assert_eq!(refusal(&text, &fewer).1, [(2, "too_many_lines")]);
        let shorter = BatchRules { max_line_bytes: rules.max_line_bytes - 1, ..rules };
        assert_eq!(refusal(&text, &shorter).1, [(1, "line_too_long"), (2, "line_too_long")]);
        let many = "x\n".repeat(1000);
        assert_eq!(refusal(&many, &BatchRules::default()).1.len(), MAX_ERRORS);
    }
}
