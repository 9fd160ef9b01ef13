//! `tern-fuzz TARGET SECONDS [FOLDER]`: mutates the corpus of a target and runs the target on each input.
//!
//! Inputs run in a child process: a panic, an abort, a stack overflow, or exceeding the memory or time limit
//! ends the child, and the parent saves the input and prints how to run it again. With FOLDER, inputs that
//! reach new code are saved there too. `tern-fuzz TARGET replay FILE` runs one input.
//!
//! `scripts/fuzz` builds it with coverage counters, which guide the mutation; without them, as in the tests,
//! it only mutates the corpus.

mod cover;
mod limit;
mod mutate;
mod record;
mod targets;
mod work;

use std::path::PathBuf;
use std::process::{self, Child, Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use record::Record;
use targets::{TARGETS, Target, remove_scratch};

/// Time limit of one input, generous for busy machines.
const INPUT: Duration = Duration::from_secs(30);
/// How often the parent checks the child.
const LOOK: Duration = Duration::from_millis(50);

fn main() -> ExitCode {
    match run(&std::env::args().skip(1).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("tern-fuzz: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> Result<(), String> {
    let names: Vec<&str> = TARGETS.iter().map(|t| t.name).collect();
    let usage =
        || format!("want TARGET SECONDS [FOLDER] or TARGET replay FILE; targets: {}", names.join(", "));
    let text: Vec<&str> = args.iter().map(String::as_str).collect();
    let target = |name: &str| TARGETS.iter().find(|t| t.name == name).ok_or_else(usage);
    match text[..] {
        [name, "replay", file] => {
            let input = std::fs::read(file).map_err(|e| format!("{file}: {e}"))?;
            let started = Instant::now();
            (target(name)?.start)()(&input);
            remove_scratch(process::id());
            println!("{file}: survived in {:.2} s", started.elapsed().as_secs_f64());
            Ok(())
        }
        [name, "child", seconds, record, folder] => {
            let seconds = seconds.parse().map_err(|_| usage())?;
            work::work(target(name)?, seconds, record.as_ref(), folder)
        }
        [name, seconds] => watch(target(name)?, seconds.parse().map_err(|_| usage())?, ""),
        [name, seconds, folder] => watch(target(name)?, seconds.parse().map_err(|_| usage())?, folder),
        _ => Err(usage()),
    }
}

/// Starts the child and waits for its end, or for an input that takes too long.
fn watch(target: &Target, seconds: u64, folder: &str) -> Result<(), String> {
    let path = std::env::temp_dir().join(format!("tern-fuzz-{}-{}", target.name, std::process::id()));
    let record = Record::create(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let own = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut command = Command::new(own);
    command.args([target.name, "child", &seconds.to_string()]).arg(&path).arg(folder);
    let mut child = command.spawn().map_err(|e| format!("a child process: {e}"))?;
    let ended = wait(&mut child, &record);
    let outcome = match ended {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{}: {status}", target.name)),
        Err(message) => Err(format!("{}: {message}", target.name)),
    };
    let outcome = outcome.map_err(|message| match keep(target, &record.input()) {
        Ok(kept) => format!(
            "{message}\ninput saved: {}\nrun it again: scripts/fuzz {} replay {}",
            kept.display(),
            target.name,
            kept.display()
        ),
        Err(e) => format!("{message}\ncannot save the input: {e}"),
    });
    let _ = std::fs::remove_file(&path);
    remove_scratch(child.id());
    outcome
}

fn wait(child: &mut Child, record: &Record) -> Result<ExitStatus, String> {
    let (mut count, mut since) = (record.count(), Instant::now());
    loop {
        if let Some(status) = child.try_wait().map_err(|e| e.to_string())? {
            return Ok(status);
        }
        if record.count() != count {
            (count, since) = (record.count(), Instant::now());
        }
        if since.elapsed() > INPUT {
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("an input took longer than {} s", INPUT.as_secs()));
        }
        std::thread::sleep(LOOK);
    }
}

/// Saves the input that ended the child to the folder of crashes.
fn keep(target: &Target, input: &[u8]) -> std::io::Result<PathBuf> {
    let folder = std::env::temp_dir().join("tern-fuzz-crashes").join(target.name);
    std::fs::create_dir_all(&folder)?;
    let path = folder.join(format!("{:016x}", mutate::hash(input)));
    std::fs::write(&path, input)?;
    Ok(path)
}
