//! The child process: runs the corpus, then mutations until the time is up.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tern_graph::Random;

use crate::cover::Cover;
use crate::mutate::{hash, mutate};
use crate::record::{LONGEST, Record};
use crate::targets::Target;

/// Runs `target` for some seconds. Inputs that reach new code are saved to `folder`, if given.
pub(crate) fn work(target: &Target, seconds: u64, record: &Path, folder: &str) -> Result<(), String> {
    let mut record = Record::open(record).map_err(|e| format!("{}: {e}", record.display()))?;
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
    let mut corpus = read(&kept)?;
    if !folder.is_empty() {
        std::fs::create_dir_all(folder).map_err(|e| format!("{folder}: {e}"))?;
        corpus.extend(read(folder.as_ref())?);
    }
    corpus.extend((target.seeds)());
    let mut run = (target.start)();
    let mut cover = Cover::new();
    // a panic is reported once, by the code that catches it
    std::panic::set_hook(Box::new(|_| ()));
    let mut one = |input: &[u8], cover: &mut Cover| -> Result<bool, String> {
        record.put(input);
        cover.clear();
        catch_unwind(AssertUnwindSafe(|| run(input))).map_err(|payload| {
            let text = payload.downcast_ref::<&str>().map(|s| s.to_string());
            text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default()
        })?;
        Ok(cover.is_new())
    };
    for input in &corpus {
        one(input, &mut cover)?;
    }
    let start = Instant::now();
    let (known, mut inputs) = (corpus.len(), 0u64);
    let mut random = Random::new(std::process::id().into());
    while start.elapsed() < Duration::from_secs(seconds) {
        let (input, other) = (&corpus[random.below(corpus.len())], &corpus[random.below(corpus.len())]);
        let input = mutate(&mut random, input, other, target.words);
        inputs += 1;
        if one(&input, &mut cover)? {
            if !folder.is_empty() {
                let path = Path::new(folder).join(format!("{:016x}", hash(&input)));
                std::fs::write(&path, &input).map_err(|e| format!("{}: {e}", path.display()))?;
            }
            corpus.push(input);
        }
    }
    let (counters, reached) = cover.counts();
    let guided = match counters {
        0 => "without coverage".into(),
        _ => format!("{} new, {reached} of {counters} blocks reached", corpus.len() - known),
    };
    println!("{}: {known} inputs in the corpus, {inputs} mutated in {seconds} s, {guided}", target.name);
    Ok(())
}

/// The files of a folder, in the order of their names.
fn read(folder: &Path) -> Result<Vec<Vec<u8>>, String> {
    let failed = |e: std::io::Error| format!("{}: {e}", folder.display());
    let mut paths: Vec<PathBuf> = vec![];
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        paths.push(entry.map_err(failed)?.path());
    }
    paths.sort();
    let files = paths.iter().map(|p| std::fs::read(p).map_err(failed));
    Ok(files.collect::<Result<Vec<_>, _>>()?.into_iter().filter(|f| f.len() <= LONGEST).collect())
}
