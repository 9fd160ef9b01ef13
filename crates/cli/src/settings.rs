//! The config file: values of flags that apply unless the command line has others.
//!
//! ```toml
//! model = "smollm2"       # of every command that runs a model
//! threads = 8             # of every command with --threads
//!
//! [serve]                 # of one command
//! port = 9000
//! ```

use std::path::PathBuf;

use clap::builder::{ArgPredicate, OsStr, Resettable};
use clap::{Arg, ArgAction, Command};
use serde_json::{Map, Value};

use crate::nearest;
use crate::process::folders;

/// The largest file that is read.
const MAX_BYTES: u64 = 1 << 20;

/// The name of the default model.
const MODEL: &str = "model";
/// The commands whose default model the file and TERN_MODEL set. In the others `--model` asks for more than a
/// default: `embed` and `rerank` need models of other kinds, `doctor` compares the model, `bench serve`
/// names it in requests.
const MODEL_COMMANDS: [&str; 7] = ["run", "chat", "serve", "tokenize", "bench", "perplexity", "imatrix"];
/// Flags of every command.
const NOT_SET: [&str; 2] = ["help", "version"];

/// A value of one flag.
#[derive(Clone, Debug, PartialEq)]
struct Setting {
    /// The command it is for, with spaces (`bench serve`); empty for all that have the flag.
    command: String,
    /// The long flag, without dashes.
    flag: String,
    value: Value,
}

/// The settings of the file and of the environment.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    settings: Vec<Setting>,
    /// TERN_MODEL.
    model: Option<String>,
}

/// Where the file is: TERN_CONFIG, else `tern/config.toml` in the folder of configuration. An empty
/// TERN_CONFIG is no file.
pub(crate) fn path() -> Option<PathBuf> {
    match std::env::var_os("TERN_CONFIG") {
        Some(path) if path.is_empty() => None,
        Some(path) => Some(path.into()),
        None => folders::config().map(|folder| folder.join("config.toml")),
    }
}

impl Settings {
    /// Reads the file, if there is one, and TERN_MODEL; an error is one sentence.
    pub(crate) fn read(commands: &Command) -> Result<Settings, String> {
        let model = std::env::var("TERN_MODEL").ok().filter(|model| !model.trim().is_empty());
        let Some(path) = path() else { return Ok(Settings { model, ..Settings::default() }) };
        let failed = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
        let metadata = match path.metadata() {
            Err(e)
                if e.kind() == std::io::ErrorKind::NotFound && std::env::var_os("TERN_CONFIG").is_none() =>
            {
                return Ok(Settings { model, ..Settings::default() });
            }
            other => other.map_err(|e| failed(&e))?,
        };
        if !metadata.is_file() || metadata.len() > MAX_BYTES {
            return Err(failed(&"not a config file: want a TOML file of at most 1 MiB"));
        }
        let text = std::fs::read_to_string(&path).map_err(|e| failed(&e))?;
        let settings = parse(&text, commands).map_err(|why| failed(&why))?;
        Ok(Settings { settings, model })
    }

    /// One line per setting, in the notation of the file.
    pub(crate) fn lines(&self) -> Vec<String> {
        let line = |setting: &Setting| match setting.command.as_str() {
            "" => format!("{} = {}", setting.flag, setting.value),
            command => format!("{}.{} = {}", command.replace(' ', "."), setting.flag, setting.value),
        };
        let model =
            self.model.iter().map(|model| format!("{MODEL} = {} (TERN_MODEL)", Value::from(model.as_str())));
        self.settings.iter().map(line).chain(model).collect()
    }

    /// Where this value of a flag is from, if a user did not type it.
    pub(crate) fn origin(&self, flag: &str, value: &str) -> Option<String> {
        if flag == MODEL && self.model.as_deref() == Some(value) {
            return Some("TERN_MODEL".into());
        }
        let is = |s: &&Setting| s.flag == flag && texts(&s.value).iter().any(|text| text == value);
        let found = self.settings.iter().find(is);
        found.and_then(|_| Some(path()?.display().to_string()))
    }

    /// The commands with these values as defaults.
    pub(crate) fn apply(&self, commands: Command) -> Command {
        self.apply_to(commands, "")
    }

    fn apply_to(&self, mut command: Command, name: &str) -> Command {
        let subcommands: Vec<String> =
            command.get_subcommands().map(|sub| sub.get_name().to_string()).collect();
        for sub in subcommands {
            let name = if name.is_empty() { sub.clone() } else { format!("{name} {sub}") };
            command = command.mut_subcommand(sub, |sub| self.apply_to(sub, &name));
        }
        let flags: Vec<(String, String)> = settable(&command)
            .filter_map(|arg| Some((arg.get_id().to_string(), arg.get_long()?.to_string())))
            .collect();
        for (id, long) in flags {
            if let Some(value) = self.value(name, &long) {
                let others: Vec<Arg> = conflicting(&command, &id).into_iter().cloned().collect();
                command = command.mut_arg(&id, |arg| with_default(arg, &value, &others));
            }
        }
        command
    }

    /// The value of a flag: of TERN_MODEL, of the command's own section, or of the beginning of the file.
    fn value(&self, command: &str, flag: &str) -> Option<Value> {
        let is_default_model = flag == MODEL && MODEL_COMMANDS.contains(&command);
        if let Some(model) = self.model.as_ref().filter(|_| is_default_model) {
            return Some(model.as_str().into());
        }
        let of = |section: &str| {
            let mut found = self.settings.iter().filter(|s| s.command == section && s.flag == flag);
            found.next().map(|setting| setting.value.clone())
        };
        of(command).or_else(|| of("").filter(|_| flag != MODEL || is_default_model))
    }
}

/// The flags of a command that a file may set.
fn settable(command: &Command) -> impl Iterator<Item = &Arg> {
    let known =
        |arg: &&Arg| arg.get_long().is_some_and(|long| !NOT_SET.contains(&long)) && !arg.is_hide_set();
    command.get_arguments().filter(known)
}

/// The flags and arguments that exclude this one: given on the command line, they replace its default.
fn conflicting<'c>(command: &'c Command, id: &str) -> Vec<&'c Arg> {
    let is_this = |arg: &&Arg| arg.get_id() == id;
    let Some(this) = command.get_arguments().find(is_this) else { return vec![] };
    let excluded = command.get_arg_conflicts_with(this).into_iter();
    let excluding =
        command.get_arguments().filter(|arg| command.get_arg_conflicts_with(arg).iter().any(is_this));
    excluded.chain(excluding).collect()
}

fn with_default(arg: Arg, value: &Value, others: &[Arg]) -> Arg {
    let arg = others.iter().fold(arg.required(false), |arg, other| {
        // a switch that is not given is present, too: it is false
        let given = match other.get_action() {
            ArgAction::SetTrue => ArgPredicate::Equals("true".into()),
            _ => ArgPredicate::IsPresent,
        };
        arg.default_value_if(other.get_id().clone(), given, Resettable::<OsStr>::Reset)
    });
    arg.default_values(texts(value).into_iter().map(OsStr::from))
}

/// The values as they are written on a command line.
fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) => vec![text.clone()],
        Value::Array(all) => all.iter().flat_map(texts).collect(),
        other => vec![other.to_string()],
    }
}

/// Parses and checks a file.
fn parse(text: &str, commands: &Command) -> Result<Vec<Setting>, String> {
    let table: Map<String, Value> = basic_toml::from_str(text).map_err(|e| e.to_string())?;
    let mut settings = vec![];
    section(&table, commands, "", &mut settings)?;
    Ok(settings)
}

/// The settings of one command and, below it, of its commands.
fn section(
    table: &Map<String, Value>,
    command: &Command,
    name: &str,
    settings: &mut Vec<Setting>,
) -> Result<(), String> {
    for (key, value) in table {
        if let Value::Object(inner) = value {
            let Some(sub) = command.find_subcommand(key).filter(|_| key != "help") else {
                let names = command.get_subcommands().map(Command::get_name);
                return Err(format!("[{key}]: no such command{}", nearest::tip(key, names)));
            };
            let name = if name.is_empty() { key.clone() } else { format!("{name} {key}") };
            section(inner, sub, &name, settings)?;
            continue;
        }
        // at the beginning of the file, a flag of any command
        let everywhere = || every_command(command);
        let scope: Vec<&Command> = if name.is_empty() { everywhere() } else { vec![command] };
        let mut named =
            scope.iter().flat_map(|command| settable(command)).filter(|arg| arg.get_long() == Some(key));
        let Some(arg) = named.next() else {
            let all = scope.iter().flat_map(|command| settable(command)).filter_map(Arg::get_long);
            let tip = nearest::tip(key, all);
            let of = if name.is_empty() { String::new() } else { format!(" of `{name}`") };
            return Err(format!("{key}: no such flag{of}{tip}"));
        };
        check(arg, value).map_err(|want| format!("{key}: want {want}, got {value}"))?;
        // what is off is not set
        if *value != Value::Bool(false) {
            settings.push(Setting { command: name.to_string(), flag: key.clone(), value: value.clone() });
        }
    }
    Ok(())
}

fn every_command(command: &Command) -> Vec<&Command> {
    let below = command.get_subcommands().flat_map(|sub| every_command(sub));
    [command].into_iter().chain(below).collect()
}

/// Whether a flag takes values like this; otherwise what it takes. The value itself is
/// parsed with the command line.
fn check(arg: &Arg, value: &Value) -> Result<(), &'static str> {
    let takes_several = matches!(arg.get_action(), ArgAction::Append);
    match (arg.get_action(), value) {
        (ArgAction::SetTrue, Value::Bool(_)) => Ok(()),
        (ArgAction::SetTrue, _) => Err("true or false"),
        (_, Value::String(_) | Value::Number(_)) => Ok(()),
        (_, Value::Array(all)) if takes_several && all.iter().all(|v| v.is_string() || v.is_number()) => {
            Ok(())
        }
        _ if takes_several => Err("a text, a number or a list of them"),
        _ => Err("a text or a number"),
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, FromArgMatches};

    use super::*;
    use crate::args::{self, Cli};

    fn settings(text: &str, model: Option<&str>) -> Settings {
        let settings = parse(text, &Cli::command()).unwrap();
        Settings { settings, model: model.map(str::to_string) }
    }

    fn parsed(settings: &Settings, line: &[&str]) -> args::Command {
        let command = settings.apply(Cli::command());
        command.clone().debug_assert();
        let matches = command.try_get_matches_from([&["tern"], line].concat()).unwrap();
        Cli::from_arg_matches(&matches).unwrap().command
    }

    fn serve(settings: &Settings, line: &[&str]) -> args::ServeArgs {
        match parsed(settings, line) {
            args::Command::Serve(args) => *args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn flags_go_before_the_environment_and_that_before_the_file() {
        let text = "model = 'a.gguf'\nthreads = 3\n[serve]\nport = 9000\nthreads = 4\napi-key = ['x', 'y']\n";
        let file = settings(text, None);
        let args = serve(&file, &["serve"]);
        assert_eq!(
            (args.port, args.engine.model.threads, args.engine.model.model),
            (9000, Some(4), vec!["a.gguf".to_string()])
        );
        assert_eq!(args.api_key, ["x", "y"]);
        let args = serve(&settings(text, Some("b.gguf")), &["serve", "-p", "1", "--api-key", "z"]);
        assert_eq!((args.port, args.engine.model.model), (1, vec!["b.gguf".to_string()]));
        assert_eq!(args.api_key, ["z"], "a list is replaced, not extended");
        let args = serve(&settings(text, Some("b.gguf")), &["serve", "-m", "c.gguf"]);
        assert_eq!(args.engine.model.model, ["c.gguf"]);
        let args::Command::Run(args) = parsed(&file, &["run", "x"]) else { panic!() };
        assert_eq!((args.model.threads, args.model.model), (Some(3), vec!["a.gguf".to_string()]));
    }

    #[test]
    fn a_default_model_does_not_exclude_what_replaces_it() {
        let file = settings("model = 'a.gguf'", None);
        for line in [&["serve", "b.gguf"][..], &["serve", "--hf", "o/r"], &["serve", "--models", "folder"]] {
            assert!(serve(&file, line).engine.model.model.is_empty(), "{line:?}");
        }
        let args::Command::Bench(args) = parsed(&file, &["bench", "--synthetic", "tiny-qwen3:q4_0"]) else {
            panic!()
        };
        assert!(args.model.model.is_empty());
        parsed(&file, &["bench", "ops"]);
        let args::Command::Doctor(args) = parsed(&file, &["doctor"]) else { panic!() };
        assert!(args.model.model.is_empty(), "a default model is not compared");
    }

    #[test]
    fn switches_and_nested_commands_are_set() {
        let file = settings(
            "quiet = true\nmlock = false\n[bench.serve]\nwarmup = 3\nstreams = [1, 8]\n[run]\njson = true\n",
            None,
        );
        let args::Command::Run(args) = parsed(&file, &["run", "x"]) else { panic!() };
        assert!(args.model.quiet && !args.model.mlock && args.json);
        let args::Command::Bench(args) = parsed(&file, &["bench", "serve", "http://h"]) else { panic!() };
        let Some(args::BenchWhat::Serve(serve)) = args.what else { panic!() };
        assert_eq!((serve.warmup, serve.streams), (3, vec![1, 8]));
        let want =
            ["quiet = true", "bench.serve.warmup = 3", "bench.serve.streams = [1,8]", "run.json = true"];
        assert_eq!(file.lines(), want);
    }

    #[test]
    fn what_is_wrong_is_refused_with_the_nearest_name() {
        let error = |text: &str| parse(text, &Cli::command()).unwrap_err();
        assert_eq!(error("thread = 3"), "thread: no such flag (did you mean threads?)");
        assert_eq!(error("[serve]\nprot = 3"), "prot: no such flag of `serve` (did you mean port?)");
        assert_eq!(error("[server]\nport = 3"), "[server]: no such command (did you mean serve?)");
        assert!(error("[chat]\nport = 3").starts_with("port: no such flag of `chat`"));
        assert_eq!(error("quiet = 1"), "quiet: want true or false, got 1");
        assert_eq!(error("threads = true"), "threads: want a text or a number, got true");
        assert_eq!(error("threads = [1, 2]"), "threads: want a text or a number, got [1,2]");
        assert!(error("help = true").starts_with("help: no such flag"));
        assert!(error("port = ").contains("line 1"), "{}", error("port = "));
    }
}
