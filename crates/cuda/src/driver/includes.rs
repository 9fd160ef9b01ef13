//! Includes of kernels: the text of a file with those that it includes in their places.

/// The text of a file: each line `#include "path"` becomes the text of the file that `read` has there, the
/// first time that it is included, and nothing later. Line directives name the file of each line.
pub(super) fn resolved(path: &str, read: impl Fn(&str) -> Option<String>) -> Result<Resolved, String> {
    let mut includes = Includes { read, open: vec![], done: vec![], text: String::new() };
    includes.add(path)?;
    Ok(Resolved { text: includes.text, files: includes.done })
}

/// A file with those that it includes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Resolved {
    pub(super) text: String,
    /// All of them: each after those that it includes.
    pub(super) files: Vec<String>,
}

struct Includes<R> {
    read: R,
    /// The files that include each other at this line, the program first.
    open: Vec<String>,
    done: Vec<String>,
    text: String,
}

impl<R: Fn(&str) -> Option<String>> Includes<R> {
    fn add(&mut self, path: &str) -> Result<(), String> {
        let includer = self.open.last().map_or("nothing", String::as_str);
        let file =
            (self.read)(path).ok_or_else(|| format!("{includer} includes {path}, which is missing"))?;
        self.open.push(path.into());
        self.text += &format!("#line 1 \"{path}\"\n");
        for (i, line) in file.lines().enumerate() {
            match line.strip_prefix("#include \"").and_then(|rest| rest.strip_suffix('"')) {
                Some(other) if self.open.iter().any(|open| open == other) => {
                    return Err(format!("{path} includes {other}, which includes it"));
                }
                Some(other) if self.done.iter().any(|done| done == other) => self.text.push('\n'),
                Some(other) => {
                    self.add(other)?;
                    self.text += &format!("#line {} \"{path}\"\n", i + 2);
                }
                None if line == "#pragma once" => self.text.push('\n'),
                None => self.text += &format!("{line}\n"),
            }
        }
        self.done.extend(self.open.pop());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(files: &[(&str, &str)], path: &str) -> Option<String> {
        files.iter().find(|file| file.0 == path).map(|file| file.1.to_string())
    }

    #[test]
    fn each_file_is_included_once_where_it_is_first_named() {
        let files = [
            ("a", "// a\n#include \"b\"\n#include \"c\"\nint a;\n"),
            ("b", "#pragma once\n#include \"c\"\nint b;\n"),
            ("c", "int c;\n"),
        ];
        let Resolved { text, files } = resolved("a", |path| read(&files, path)).unwrap();
        let want = "#line 1 \"a\"\n// a\n#line 1 \"b\"\n\n#line 1 \"c\"\nint c;\n#line 3 \"b\"\nint b;\n#line 3 \"a\"\n\nint a;\n";
        assert_eq!(text, want);
        assert_eq!(files, ["c", "b", "a"]);
    }

    #[test]
    fn circles_and_missing_files_are_errors() {
        let files = [("a", "#include \"b\"\n"), ("b", "#include \"a\"\n"), ("c", "#include \"d\"\n")];
        let circle = resolved("a", |path| read(&files, path));
        assert_eq!(circle, Err("b includes a, which includes it".into()));
        let missing = resolved("c", |path| read(&files, path));
        assert_eq!(missing, Err("c includes d, which is missing".into()));
    }
}
