//! Flags of llama.cpp, Ollama and vLLM that users type: what to use in their place, or
//! that they are not needed.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Flags that other programs have, and what to do here.
struct Habit {
    flags: &'static [&'static str],
    advice: &'static str,
}

const fn habit(flags: &'static [&'static str], advice: &'static str) -> Habit {
    Habit { flags, advice }
}

/// Only flags that the command does not have are looked up: `-f` is one of `perplexity`.
#[rustfmt::skip]
const HABITS: &[Habit] = &[
    habit(&["-p", "--prompt"],
        "the prompt is an argument of `run`, not a flag: tern run \"Once upon a time\""),
    habit(&["-f", "--file", "--prompt-file"], "the prompt of a file is read from stdin: tern run - < FILE"),
    habit(&["-bf", "--binary-file"], "the prompt of a file is read from stdin: tern run - < FILE"),
    habit(&["-n", "--n-predict", "--predict", "--num-predict", "--max-new-tokens"],
        "the number of tokens is -n or --max-tokens of `run` and `chat`"),
    habit(&["-c", "--ctx-size", "--context-size", "--num-ctx", "--n-ctx"], "the context is -c or --ctx"),
    habit(&["--num-gpu"], "use --gpu-layers"),
    habit(&["-mg", "--main-gpu", "-sm", "--split-mode", "-ts", "--tensor-split", "-tp", "--tensor-parallel-size"],
        "a model runs on one device: use --device cuda:N"),
    habit(&["-ncmoe", "--n-cpu-moe", "-cmoe", "--cpu-moe", "-ot", "--override-tensor"],
        "use --experts cpu:N for the experts of N layers, cpu for all, or auto"),
    habit(&["-ctk", "--cache-type-k", "-ctv", "--cache-type-v"], "use --kv f16, int8 or fp8"),
    habit(&["--prompt-cache", "--prompt-cache-all", "--prompt-cache-ro", "--slot-save-path"],
        "use --cache-dir FOLDER, which keeps the prefixes of all prompts"),
    habit(&["--cache-reuse", "--enable-prefix-caching"],
        "not needed: equal beginnings of prompts are computed once; --cache-dir keeps them on disk"),
    habit(&["-fa", "--flash-attn"], "not needed: attention always needs little memory"),
    habit(&["-cb", "--cont-batching", "--enable-chunked-prefill"], "not needed: `serve` always batches requests"),
    habit(&["-b", "--batch-size", "-ub", "--ubatch-size"],
        "not needed: a step has as many tokens as the device computes well; `serve` has --max-batch-tokens"),
    habit(&["-tb", "--threads-batch"], "use -t: prompts and answers are computed by the same threads"),
    habit(&["-v", "--verbose", "--log-verbose", "--verbosity", "-lv"],
        "not needed: memory and speed are printed without it, and -q turns them off; `serve` has --log debug"),
    habit(&["--log-disable", "--no-perf", "--simple-io"], "use -q"),
    habit(&["-co", "--color", "--no-display-prompt", "--keep", "--escape"], "not needed"),
    habit(&["-i", "--interactive", "-if", "--interactive-first", "-cnv", "--conversation"],
        "use `tern chat` for a conversation"),
    habit(&["-no-cnv", "--no-conversation", "-st", "--single-turn"],
        "use `tern run`; --raw passes the prompt without the chat template"),
    habit(&["--jinja"], "not needed: the chat template of the model is always used"),
    habit(&["--chat-template", "--chat-template-file"],
        "the chat template is that of the model; `run --raw` passes a prompt without it"),
    habit(&["--grammar"], "use --grammar-file FILE"),
    habit(&["-j", "--json-schema", "--format"],
        "a server takes JSON schemas as `response_format`; `run` has --grammar-file, and --json prints an object"),
    habit(&["-r", "--reverse-prompt"], "use --stop TEXT of `run`"),
    habit(&["-md", "--model-draft", "--spec-draft-model", "--speculative-config"],
        "speculative decoding with a draft model is not supported"),
    habit(&["-hff", "--hf-file"], "use -m org/repo:FILE"),
    habit(&["-mu", "--model-url"], "use -m org/repo:FILE, or download the file"),
    habit(&["--embedding", "--embeddings", "--reranking", "--metrics", "--slots", "--props"],
        "not needed: `serve` always has these routes"),
    habit(&["--keepalive"], "use --keep-alive of `serve`, in seconds"),
    habit(&["--nowordwrap"], "use --no-wrap of `chat`"),
    habit(&["--think", "--hidethinking"], "use /set think on or off in `chat`, or `think` in requests"),
    habit(&["--insecure"], "not needed: downloads use HTTPS"),
    habit(&["--dtype", "--quantization"], "not needed: weights are used in the format of the file; `tern quantize` writes another"),
    habit(&["--gpu-memory-utilization"], "use --kv-pages, or --memory with several models"),
    habit(&["--enforce-eager", "--trust-remote-code"], "not needed"),
    habit(&["--allowed-media-domains"], "use --allow-image-urls"),
    habit(&["--allowed-local-media-path"], "use --image-folder"),
];

/// The advice for a flag.
fn advice(flag: &str) -> Option<&'static str> {
    HABITS.iter().find(|habit| habit.flags.contains(&flag)).map(|habit| habit.advice)
}

/// Replaces what the parser proposes for an unknown flag by advice, if there is some.
pub(crate) fn advise(error: &mut clap::Error, args: &[OsString]) {
    if error.kind() != ErrorKind::UnknownArgument {
        return;
    }
    let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidArg) else { return };
    let given = given.clone();
    // a text that begins with a dash is taken for flags
    let is_text = |arg: &OsString| {
        arg.to_str().is_some_and(|arg| arg.starts_with(&given) && arg.contains(char::is_whitespace))
    };
    let is_value = args.iter().any(is_text);
    match advice(&given) {
        Some(advice) => {
            let kinds =
                [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::SuggestedValue];
            for kind in kinds.into_iter().chain([ContextKind::TrailingArg, ContextKind::SuggestedCommand]) {
                error.remove(kind);
            }
            error.remove(ContextKind::Usage); // it has the flag that the parser proposes
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![advice.to_string().into()]));
        }
        // that it may be passed as a value is useful only for a text
        None if !is_value => {
            error.remove(ContextKind::Suggested);
            error.remove(ContextKind::TrailingArg);
        }
        None => {}
    }
}

/// Makes flags with one dash and several letters, which the parser has not, long ones: those that mean a flag
/// of Tern, and those with advice.
pub(crate) fn long_flags(args: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    let mut plain = false; // after `--`
    args.map(move |arg| {
        plain |= arg == "--";
        match arg.to_str() {
            Some(text) if !plain => long_flag(text).map_or(arg, OsString::from),
            _ => arg,
        }
    })
}

/// The long form of a flag with one dash.
fn long_flag(text: &str) -> Option<String> {
    let same = [
        ("-hf", "--hf"),
        ("-mm", "--mmproj"),
        ("-ngl", "--gpu-layers"),
        ("-np", "--parallel"),
        ("-sys", "--system"),
    ];
    if let Some((_, long)) = same.iter().find(|(short, _)| *short == text) {
        return Some(long.to_string());
    }
    if let Some(layers) = text.strip_prefix("-ngl").filter(|layers| layers.parse::<u32>().is_ok()) {
        return Some(format!("--gpu-layers={layers}"));
    }
    let several = text.len() > 2 && text.starts_with('-') && !text.starts_with("--");
    let habit = HABITS.iter().find(|habit| several && habit.flags.contains(&text))?;
    habit.flags.iter().find(|flag| flag.starts_with("--")).map(|long| long.to_string())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Cli;

    /// The message about a command line.
    fn message(args: &[&str]) -> String {
        let args = [&["tern"], args].concat().into_iter().map(OsString::from);
        let args: Vec<OsString> = long_flags(args).collect();
        let mut error = Cli::command().try_get_matches_from(&args).unwrap_err();
        advise(&mut error, &args);
        error.to_string()
    }

    #[test]
    fn every_flag_of_the_table_has_its_advice_where_the_command_has_no_such_flag() {
        for command in ["run", "chat", "serve"] {
            let cli = Cli::command();
            let command_flags = cli.find_subcommand(command).unwrap();
            let has = |flag: &str| {
                command_flags.get_arguments().any(|arg| match flag.strip_prefix("--") {
                    Some(long) => {
                        arg.get_long_and_visible_aliases().unwrap_or_default().contains(&long)
                            || arg.get_all_aliases().unwrap_or_default().contains(&long)
                    }
                    None => arg.get_short().is_some_and(|short| flag == format!("-{short}")),
                })
            };
            for habit in HABITS {
                for flag in habit.flags.iter().filter(|flag| !has(flag)) {
                    let message = message(&[command, flag, "x"]);
                    assert!(
                        message.contains(&format!("tip: {}", habit.advice)),
                        "{command} {flag}: {message}"
                    );
                    assert_eq!(message.matches("tip:").count(), 1, "{command} {flag}: {message}");
                }
            }
        }
    }

    #[test]
    fn a_flag_is_in_the_table_once() {
        let mut flags: Vec<&str> = HABITS.iter().flat_map(|habit| habit.flags).copied().collect();
        let count = flags.len();
        flags.sort_unstable();
        flags.dedup();
        assert_eq!(flags.len(), count);
    }

    #[test]
    fn other_tips_are_kept_if_they_can_be_right() {
        assert!(message(&["run", "--top_k", "3", "x"]).contains("'--top-k'"));
        assert!(!message(&["run", "-x", "y"]).contains("tip:"));
        assert!(message(&["run", "-5 plus 3 is what?"]).contains("tip: to pass"));
    }

    #[test]
    fn after_two_dashes_everything_is_a_value() {
        let args = ["tern", "run", "-ngl", "--", "-ngl", "-fa"].map(OsString::from);
        let got: Vec<_> = long_flags(args.into_iter()).collect();
        assert_eq!(got, ["tern", "run", "--gpu-layers", "--", "-ngl", "-fa"]);
        assert_eq!(long_flag("-t"), None);
        assert_eq!(long_flag("-n8"), None);
        assert_eq!(long_flag("-ngl99").as_deref(), Some("--gpu-layers=99"));
        assert_eq!(long_flag("-nglow"), None);
    }
}
