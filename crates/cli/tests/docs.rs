//! The documentation lists every command, every flag of the server and of `bench serve`, every sampling
//! parameter and every route, and the files it names exist.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(repository().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn help(args: &[&str]) -> String {
    let out = Command::new(env!("CARGO_BIN_EXE_tern")).args(args).arg("--help").output().unwrap();
    String::from_utf8(out.stdout).unwrap()
}

/// The lines of the table after this heading, without its two header lines.
fn table<'a>(docs: &'a str, heading: &str) -> Vec<&'a str> {
    let (_, rest) = docs.split_once(heading).unwrap_or_else(|| panic!("no {heading:?}"));
    let lines = rest.lines().skip_while(|line| !line.starts_with('|')).skip(2);
    lines.take_while(|line| line.starts_with('|')).collect()
}

/// The long flags that a text mentions.
fn flags(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
    words.filter(|word| word.len() > 3 && word.starts_with("--") && word != &"---").collect()
}

#[test]
fn commands_list_every_command() {
    let help = help(&[]);
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let commands = commands.lines().take_while(|line| !line.trim().is_empty());
    let names = commands.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let want: BTreeSet<&str> =
        names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").collect();
    let docs = [("docs/commands.md", "\n## All commands\n"), ("README.md", "\n## Commands\n")];
    let [all, few] = docs.map(|(file, heading)| {
        let text = read(file);
        let names = table(&text, heading)
            .into_iter()
            .filter_map(|row| row.split(['`', ' ']).nth(3).map(str::to_owned));
        names.collect::<BTreeSet<String>>()
    });
    assert_eq!(all.iter().map(String::as_str).collect::<BTreeSet<_>>(), want, "docs/commands.md, commands");
    assert!(few.len() > 2 && few.is_subset(&all), "README.md, commands: {few:?}");
}

/// Compares the flags of a command with the first column of the table after a heading.
fn check_flags(command: &[&str], file: &str, heading: &str) {
    let help = help(command);
    // flags start a line; the texts beside and below them may mention others
    let starts = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    let want: BTreeSet<&str> = starts
        .filter_map(|line| flags(line.split("  ").next()?).into_iter().next())
        .filter(|flag| !["--help", "--version"].contains(flag))
        .collect();
    assert!(want.contains("--model"), "{want:?}");
    let docs = read(file);
    let rows = table(&docs, heading);
    let have: BTreeSet<&str> = rows
        .iter()
        .flat_map(|row| flags(row.split(" | ").next().unwrap_or_default()).into_iter().next())
        .collect();
    assert_eq!(have, want, "{file}, flags of {command:?}");
}

#[test]
fn operations_list_every_flag_of_serve() {
    check_flags(&["serve"], "docs/operations.md", "\n## Flags\n");
}

#[test]
fn commands_list_every_flag_of_bench_serve() {
    check_flags(&["bench", "serve"], "docs/commands.md", "\n## bench serve\n");
}

/// A parameter's row has its names in the first cell, its range in the second one, and
/// its flag in the third one.
#[test]
fn api_lists_every_sampling_parameter_with_its_range() {
    let docs = read("docs/api.md");
    let rows: Vec<Vec<&str>> =
        docs.lines().filter(|line| line.starts_with("| `")).map(|line| line.split(" | ").collect()).collect();
    for parameter in tern::graph::PARAMETERS {
        let has_name = |cell: &str, name: &str| cell.contains(&format!("`{name}`"));
        let all_names = |cell: &str| {
            has_name(cell, parameter.name) && parameter.aliases.iter().all(|alias| has_name(cell, alias))
        };
        let (range, flag) = (parameter.range.to_string(), format!("`--{}`", parameter.flag));
        let is_row = |row: &&Vec<&str>| match row[..] {
            [names, value, default] => {
                all_names(names) && value.starts_with(&range) && default.contains(&flag)
            }
            _ => false,
        };
        let name = parameter.name;
        assert!(
            rows.iter().any(|row| is_row(&row)),
            "docs/api.md, {name}: want a row with {range} and {flag}"
        );
    }
}

#[test]
fn api_lists_every_route() {
    let source = read("crates/server/src/routes.rs");
    let route = |line: &str| {
        let (method, rest) = line.trim().split_once(" \"")?;
        let (path, _handler) = rest.split_once("\" => ")?;
        Some(format!("{} {}", method.to_uppercase(), path.replace("{*id}", "NAME").replace("{id}", "ID")))
    };
    let want: BTreeSet<String> = source.lines().filter_map(route).collect();
    assert!(want.contains("GET /health"), "{want:?}");
    let docs = read("docs/api.md");
    let rows = table(&docs, "\n## Routes\n");
    let first = rows.iter().filter_map(|row| row.split(" | ").next());
    let have: BTreeSet<String> =
        first.flat_map(|cell| cell.split('`').skip(1).step_by(2)).map(str::to_owned).collect();
    assert_eq!(have, want, "docs/api.md, routes");
}

/// Adds the paths of all files and folders below `folder`, relative to the repository.
fn add_paths(folder: &Path, paths: &mut Vec<String>) {
    for entry in std::fs::read_dir(repository().join(folder)).unwrap() {
        let entry = entry.unwrap();
        let path = folder.join(entry.file_name());
        paths.push(path.to_string_lossy().replace('\\', "/"));
        if entry.file_type().unwrap().is_dir() {
            add_paths(&path, paths);
        }
    }
}

#[test]
fn named_files_exist() {
    let mut paths = Vec::new();
    for folder in ["crates", "deploy", "docs", "fixtures", "scripts"] {
        add_paths(Path::new(folder), &mut paths);
    }
    let exists = |name: &str| {
        paths
            .iter()
            .any(|path| path.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('/')))
    };
    // kernels are named without their folder
    let is_path = |name: &str| {
        let plain = name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "_./-".contains(c));
        let source = [".rs", ".py", ".md", ".toml"].iter().any(|ending| name.ends_with(ending));
        let kernel = [".cu", ".cuh"].iter().any(|ending| name.ends_with(ending) && name != *ending);
        plain && (kernel || name.contains('/') && source)
    };
    let (mut checked, mut missing) = (0, Vec::new());
    // the history names files of its time
    let current =
        |path: &&String| path.starts_with("docs/") && !path.starts_with("docs/log/") && path.ends_with(".md");
    let docs = paths.iter().filter(current).map(String::as_str);
    for file in ["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md"].into_iter().chain(docs) {
        let text = read(file);
        for name in text.split('`').skip(1).step_by(2).filter(|name| is_path(name)) {
            checked += 1;
            if !exists(name) {
                missing.push(format!("{file}: {name}"));
            }
        }
    }
    assert!(checked > 200, "only {checked} names found");
    assert!(missing.is_empty(), "files that do not exist:\n{}", missing.join("\n"));
}
