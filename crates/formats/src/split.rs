//! Split models: opening `<prefix>-00001-of-00003.gguf` and its siblings as one model.

use std::path::Path;

use crate::{Access, FormatError, Metadata, SplitError, shard::Shard};

const NO: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";
/// The keys of a shard: its number, counted from 0, the shards, and the tensors of all.
pub(crate) const KEYS: [&str; 3] = [NO, COUNT, TENSORS];

/// The parsed file name of a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShardName {
    prefix: String,
    /// Counts from 1.
    number: u64,
    count: u64,
}

impl ShardName {
    /// `None` for a name that is not `<prefix>-NNNNN-of-NNNNN.gguf` with a number from 1 to the count.
    pub(crate) fn parse(name: &str) -> Option<ShardName> {
        let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
        let (prefix, number) = rest.rsplit_once('-')?;
        let digits = |s: &str| match s.len() == 5 && s.bytes().all(|b| b.is_ascii_digit()) {
            true => s.parse().ok(),
            false => None,
        };
        let (number, count) = (digits(number)?, digits(count)?);
        (1..=count).contains(&number).then(|| ShardName { prefix: prefix.into(), number, count })
    }

    /// The names of a model's files; `None` if there are more than five digits can count.
    pub(crate) fn of(prefix: &str, count: u64) -> Option<ShardName> {
        // the keys are 16-bit numbers in files
        (1..=u64::from(u16::MAX)).contains(&count).then(|| ShardName {
            prefix: prefix.into(),
            number: 1,
            count,
        })
    }

    /// The file name of shard `number` of the same model, counting from 1.
    pub(crate) fn sibling(&self, number: u64) -> String {
        format!("{}-{number:05}-of-{:05}.gguf", self.prefix, self.count)
    }
}

/// The file at the path, or all shards of the split model it belongs to, in order.
pub(crate) fn shards(path: &Path, access: Access) -> Result<Vec<Shard>, FormatError> {
    let named = path.file_name().and_then(|n| n.to_str()).and_then(ShardName::parse);
    let opened = Shard::open(path, access)?;
    let Some(name) = named else {
        check_whole(&opened).map_err(|e| e.at(path))?;
        return Ok(vec![opened]);
    };
    if opened.header.metadata.get(COUNT).is_none() {
        if name.count == 1 {
            return Ok(vec![opened]);
        }
        return Err(FormatError::from(SplitError::NoCount(name.number, name.count)).at(path));
    }
    let mut opened = Some(opened);
    let mut shards = Vec::new();
    for number in 1..=name.count {
        let sibling = path.with_file_name(name.sibling(number));
        let shard = match opened.take_if(|_| number == name.number) {
            Some(shard) => shard,
            None if !sibling.exists() => {
                return Err(FormatError::from(SplitError::Missing(number, name.count, sibling)).at(path));
            }
            None => Shard::open(&sibling, access)?,
        };
        let metadata = &shard.header.metadata;
        expect(metadata, COUNT, name.count)
            .and_then(|()| expect(metadata, NO, number - 1))
            .map_err(|e| FormatError::from(e).at(&sibling))?;
        shards.push(shard);
    }
    check_tensor_count(&shards).map_err(|e| FormatError::from(e).at(path))?;
    Ok(shards)
}

/// Rejects a shard whose name does not lead to its siblings.
pub(crate) fn check_whole(shard: &Shard) -> Result<(), FormatError> {
    let number = |key| shard.header.metadata.optional_usize(key).ok().flatten().map(|n| n as u64);
    match number(COUNT) {
        Some(count) if count > 1 => {
            Err(SplitError::Unnamed(number(NO).map_or(1, |no| no.saturating_add(1)), count).into())
        }
        _ => Ok(()),
    }
}

/// Removes the keys that describe a shard, which do not apply to the merged model.
pub(crate) fn remove_keys(metadata: &mut Metadata) {
    for key in KEYS {
        metadata.remove(key);
    }
}

fn expect(metadata: &Metadata, key: &'static str, want: u64) -> Result<(), SplitError> {
    if matches!(metadata.optional_usize(key), Ok(Some(found)) if found as u64 == want) {
        return Ok(());
    }
    Err(SplitError::Disagrees(key, want, metadata.get(key).map_or("missing".into(), |v| v.summary())))
}

fn check_tensor_count(shards: &[Shard]) -> Result<(), SplitError> {
    let Some(metadata) = shards.first().map(|s| &s.header.metadata) else { return Ok(()) };
    let have: u64 = shards.iter().map(|s| s.header.infos.len() as u64).sum();
    match metadata.optional_usize(TENSORS) {
        Ok(None) => Ok(()),
        Ok(Some(want)) if want as u64 == have => Ok(()),
        _ => Err(SplitError::TensorCount(
            metadata.get(TENSORS).map_or("missing".into(), |v| v.summary()),
            have,
        )),
    }
}
