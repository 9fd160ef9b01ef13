//! Opening paths: files, folders, shards, and a file far larger than memory.

mod common;

use std::{fs, io::Write as _, path::Path};

use common::{file, text};
use tempfile::tempdir;
use tern_formats::{Checkpoint, FileKind, Metadata, Value, gguf::Writer};
use tern_quant::{Dialect, F32, Q1_0, Q2_0_G128};

fn refusal(path: &Path) -> String {
    match Checkpoint::open(path) {
        Ok(_) => "accepted".into(),
        Err(e) => e.to_string(),
    }
}

#[test]
fn the_embedded_model_opens() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tern/models/tern-stories-1bit.gguf");
    let model = Checkpoint::open(&path).unwrap();
    assert_eq!(model.metadata.str("general.architecture").unwrap(), "qwen3");
    assert_eq!(model.dialect, Dialect::Ggml);
    assert_eq!(model.files.len(), 1);
    assert_eq!(
        (model.files[0].bytes, model.files[0].kind),
        (3_862_272, FileKind::Gguf { version: 3, alignment: 32 })
    );
    let embd = &model.tensors["token_embd.weight"];
    assert_eq!(embd.quant.name, "Q1_0");
    assert_eq!(embd.cols(), model.metadata.usize("qwen3.embedding_length").unwrap());
    assert_eq!(embd.rows(), model.metadata.strings("tokenizer.ggml.tokens").unwrap().len());
    assert_eq!(
        embd.data().len(),
        embd.quant.tensor_bytes((embd.rows() * embd.cols()) as u64).unwrap() as usize
    );
    let blocks = model.metadata.usize("qwen3.block_count").unwrap();
    assert!(model.tensors.contains_key(&format!("blk.{}.ffn_down.weight", blocks - 1)));
    assert!(model.total_bytes() < model.files[0].bytes);

    let bytes = fs::read(&path).unwrap();
    let same = Checkpoint::from_bytes(bytes.into()).unwrap();
    assert_eq!(same.metadata, model.metadata);
    assert!(
        same.tensors
            .values()
            .zip(model.tensors.values())
            .all(|(a, b)| a.data() == b.data() && a.dims == b.dims)
    );
}

#[test]
fn a_model_written_again_is_the_same_model() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tern/models/tern-stories-1bit.gguf");
    let model = Checkpoint::open(&path).unwrap();
    let mut writer = Writer::new(model.metadata.clone());
    for tensor in model.tensors.values() {
        writer.declare(&tensor.name, tensor.quant, &tensor.dims).unwrap();
    }
    let mut copy = Vec::new();
    let size = writer.write_to(&mut copy, |i, out| out.write_all(&model.tensors[i].data())).unwrap();
    assert_eq!(size, copy.len() as u64);
    let copy = Checkpoint::from_bytes(copy.into()).unwrap();
    assert_eq!(copy.metadata, model.metadata);
    assert!(
        copy.tensors
            .values()
            .zip(model.tensors.values())
            .all(|(a, b)| a.name == b.name && a.data() == b.data())
    );
}

#[test]
fn missing_and_other_files_are_named_in_errors() {
    let dir = tempdir().unwrap();
    let absent = dir.path().join("absent.gguf");
    assert!(refusal(&absent).starts_with(&format!("{}: ", absent.display())));
    let foreign = dir.path().join("model.gguf");
    fs::write(&foreign, "hello").unwrap();
    let sentence = "not a GGUF file: it starts with \"hell\", want \"GGUF\"";
    assert_eq!(refusal(&foreign), format!("{}: {sentence}", foreign.display()));
    fs::write(&foreign, "").unwrap();
    let sentence = "not a GGUF file: it starts with \"\", want \"GGUF\"";
    assert_eq!(refusal(&foreign), format!("{}: {sentence}", foreign.display()));
}

#[test]
fn a_folder_opens_its_only_model() {
    let dir = tempdir().unwrap();
    let at = dir.path().display();
    assert_eq!(refusal(dir.path()), format!("{at}: the folder has no .gguf or .safetensors file"));
    fs::write(dir.path().join("model.safetensors"), "").unwrap();
    assert_eq!(refusal(dir.path()), format!("{at}: the folder has no config.json"));
    fs::write(dir.path().join("b.gguf"), file(&[], &[])).unwrap();
    let opened = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(opened.files[0].path.as_deref(), Some(dir.path().join("b.gguf").as_path()));
    fs::write(dir.path().join("a.gguf"), file(&[], &[])).unwrap();
    assert_eq!(refusal(dir.path()), format!("{at}: the folder has 2 models, choose one: a.gguf, b.gguf"));
}

#[test]
fn a_file_of_many_gigabytes_is_not_read() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("large.gguf");
    let mut writer = Writer::new(Metadata::default());
    for i in 0..8 {
        writer.declare(&format!("w{i}"), &F32, &[1 << 16, 1 << 12]).unwrap(); // 1 GiB per tensor
    }
    // only the header is written: the first data fails, and the rest of the file is a hole
    let mut header = Vec::new();
    assert!(writer.write_to(&mut header, |_, _| Err(std::io::ErrorKind::StorageFull.into())).is_err());
    let mut out = fs::File::create(&path).unwrap();
    out.write_all(&header).unwrap();
    out.set_len(header.len() as u64 + (8 << 30)).unwrap();
    let opened = Checkpoint::open(&path).unwrap();
    assert_eq!(opened.total_bytes(), 8 << 30);
    assert_eq!(opened.tensors["w7"].bytes(), 1 << 30);
}

/// Three shards: `(metadata, tensors)` in three files; the weights have the legacy format of id 42.
fn write_shards(dir: &Path) {
    let split = |no| {
        vec![
            ("split.no", Value::Uint(no)),
            ("split.count", Value::Uint(3)),
            ("split.tensors.count", Value::Int(4)),
        ]
    };
    let mut first = vec![("general.architecture", text("qwen3"))];
    first.extend(split(0));
    let mut last = split(2);
    last.push(("general.alignment", Value::Uint(64)));
    let shards = [
        file(&first, &[("a", &Q2_0_G128, &[256, 16]), ("b", &F32, &[8])]),
        file(&split(1), &[("c", &Q1_0, &[128, 3])]),
        file(&last, &[("d", &F32, &[9])]),
    ];
    for (i, bytes) in shards.iter().enumerate() {
        fs::write(dir.join(format!("m-{:05}-of-00003.gguf", i + 1)), bytes).expect("a writable folder");
    }
}

#[test]
fn any_shard_opens_the_whole_model() {
    let dir = tempdir().unwrap();
    write_shards(dir.path());
    let mut paths: Vec<_> = (1..=3).map(|i| dir.path().join(format!("m-{i:05}-of-00003.gguf"))).collect();
    paths.push(dir.path().to_path_buf());
    for path in paths {
        let model = Checkpoint::open(&path).unwrap();
        assert_eq!(model.tensors.keys().collect::<Vec<_>>(), ["a", "b", "c", "d"]);
        assert_eq!(model.dialect, Dialect::PrismLegacy);
        assert_eq!(model.tensors["d"].data(), common::pattern(0, 36));
        assert_eq!(model.tensors["b"].data(), common::pattern(1, 32));
        assert_eq!(model.metadata.iter().map(|(k, _)| k).collect::<Vec<_>>(), ["general.architecture"]);
        let kinds = [32, 32, 64].map(|alignment| FileKind::Gguf { version: 3, alignment });
        assert_eq!(model.files.iter().map(|f| f.kind).collect::<Vec<_>>(), kinds);
    }
}

#[test]
fn inconsistent_shards_are_rejected() {
    let dir = tempdir().unwrap();
    let at = |i: usize| dir.path().join(format!("m-{i:05}-of-00003.gguf"));
    let split = |no, count, tensors| {
        [
            ("split.no", Value::Uint(no)),
            ("split.count", Value::Uint(count)),
            ("split.tensors.count", Value::Int(tensors)),
        ]
    };
    let starts =
        |i: usize, sentence: &str| assert_eq!(refusal(&at(i)), format!("{}: {sentence}", at(i).display()));

    write_shards(dir.path());
    fs::remove_file(at(2)).unwrap();
    starts(3, &format!("shard 2 of 3 is missing: want the file {}", at(2).display()));

    fs::write(at(2), file(&split(2, 3, 4), &[("c", &F32, &[1])])).unwrap();
    assert_eq!(refusal(&at(1)), format!("{}: `split.no` is 2, want 1 as in the file name", at(2).display()));
    fs::write(at(2), file(&split(1, 4, 4), &[("c", &F32, &[1])])).unwrap();
    starts(2, "`split.count` is 4, want 3 as in the file name");
    fs::write(at(2), file(&[], &[("c", &F32, &[1])])).unwrap();
    starts(2, "the file is named as shard 2 of 3, but has no `split.count`");
    assert_eq!(
        refusal(&at(1)),
        format!("{}: `split.count` is missing, want 3 as in the file name", at(2).display())
    );
    fs::write(at(2), file(&split(1, 3, 4), &[("c", &F32, &[1]), ("e", &F32, &[1])])).unwrap();
    starts(1, "`split.tensors.count` is 4, but the shards have 5 tensors");
    fs::write(at(2), file(&split(1, 3, 4), &[("a", &F32, &[1])])).unwrap();
    assert_eq!(refusal(&at(1)), format!("{}: tensor `a`: duplicate name", at(2).display()));

    let renamed = dir.path().join("renamed.gguf");
    fs::copy(at(3), &renamed).unwrap();
    let sentence = "the file is shard 3 of 3: want the name <prefix>-00003-of-00003.gguf to find the others";
    assert_eq!(refusal(&renamed), format!("{}: {sentence}", renamed.display()));
    assert_eq!(common::refusal(fs::read(&renamed).unwrap()), sentence);
}
