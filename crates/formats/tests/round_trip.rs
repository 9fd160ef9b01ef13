//! Round trips: a written file reads back with the same values and tensors.

mod common;

use common::{file, pattern, text};
use tern_formats::{Checkpoint, Conversion, FileKind, FormatError, Metadata, Value, gguf::Writer};
use tern_quant::{Dialect, F16, F32, Q1_0, Q4_K, Quant};

fn all_values() -> Vec<(&'static str, Value)> {
    vec![
        ("general.architecture", text("qwen3")),
        ("uint", Value::Uint(7)),
        ("uint.large", Value::Uint(u64::MAX)),
        ("int", Value::Int(-7)),
        ("int.large", Value::Int(i64::MIN)),
        ("float", Value::Float(0.15625)),
        ("bool", Value::Bool(true)),
        ("text", text("h\u{e9}llo \u{2581} \u{1f426}")),
        ("text.empty", text("")),
        ("texts", Value::Strings(vec!["a".into(), String::new(), "\u{120}b".into()])),
        ("texts.none", Value::Strings(vec![])),
        ("uints", Value::Uints(vec![0, 1, u32::MAX.into()])),
        ("uints.large", Value::Uints(vec![0, u64::MAX])),
        ("ints", Value::Ints(vec![-1, 0, i32::MAX.into()])),
        ("ints.large", Value::Ints(vec![i64::MIN, 3])),
        ("floats", Value::Floats(vec![1.5, -0.0, f32::MAX])),
        ("bools", Value::Bools(vec![true, false, true])),
        ("split.no", Value::Uint(0)),
        ("split.count", Value::Uint(1)),
        ("split.tensors.count", Value::Int(3)),
        ("tokenizer.ggml.precompiled_charsmap", Value::Uints(vec![1, 255])),
    ]
}

#[test]
fn every_value_and_tensor_reads_back() {
    let tensors: &[common::Wanted<'_>] =
        &[("a", &F32, &[3]), ("b", &Q1_0, &[256, 3, 2]), ("c", &Q4_K, &[256, 1, 1, 2]), ("d", &F16, &[5, 5])];
    for alignment in [None, Some(1), Some(8), Some(64), Some(4096)] {
        let mut pairs = all_values();
        pairs.extend(alignment.map(|n| ("general.alignment", Value::Uint(n))));
        let bytes = file(&pairs, tensors);
        let size = bytes.len() as u64;
        let back = Checkpoint::from_bytes(bytes.into()).unwrap();

        for (key, value) in &pairs {
            let expected = (!key.starts_with("split.")).then_some(value);
            assert_eq!(back.metadata.get(key), expected, "{key}");
        }
        assert_eq!(back.metadata.iter().count(), pairs.len() - 3);
        assert_eq!(back.dialect, Dialect::Ggml);
        assert_eq!(back.tensors.keys().collect::<Vec<_>>(), ["a", "b", "c", "d"]);
        for (i, (name, quant, dims)) in tensors.iter().enumerate() {
            let tensor = &back.tensors[*name];
            assert_eq!((tensor.quant.name, tensor.dims.as_slice()), (quant.name, *dims));
            assert_eq!(tensor.data(), pattern(i, tensor.bytes()));
        }
        assert_eq!((back.tensors["b"].cols(), back.tensors["b"].rows()), (256, 6));
        assert_eq!((back.tensors["a"].cols(), back.tensors["a"].rows()), (3, 1));
        assert_eq!(back.total_bytes(), 12 + 6 * 36 + 2 * 144 + 50);
        assert_eq!(
            (back.files[0].bytes, back.files[0].kind),
            (size, FileKind::Gguf { version: 3, alignment: alignment.unwrap_or(32) })
        );
    }
}

#[test]
fn values_have_the_types_that_readers_require() {
    let bytes = file(&all_values(), &[]);
    let type_of = |key: &str| {
        let mut needle = (key.len() as u64).to_le_bytes().to_vec();
        needle.extend(key.as_bytes());
        let at = bytes.windows(needle.len()).position(|w| w == needle).unwrap() + needle.len();
        let id = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        match id(at) {
            9 => vec![9, id(at + 4)],
            scalar => vec![scalar],
        }
    };
    let expected: [(&str, &[u32]); 15] = [
        ("uint", &[4]),
        ("uint.large", &[10]),
        ("int", &[5]),
        ("int.large", &[11]),
        ("float", &[6]),
        ("bool", &[7]),
        ("text", &[8]),
        ("texts", &[9, 8]),
        ("uints", &[9, 4]),
        ("uints.large", &[9, 10]),
        ("ints.large", &[9, 11]),
        ("split.no", &[2]),
        ("split.count", &[2]),
        ("split.tensors.count", &[5]),
        ("tokenizer.ggml.precompiled_charsmap", &[9, 0]),
    ];
    for (key, ty) in expected {
        assert_eq!(type_of(key), ty, "{key}");
    }
}

#[test]
fn narrow_and_wide_numbers_become_one_kind_of_value() {
    let scalars: [(u32, &[u8], Value); 6] = [
        (0, &[200], Value::Uint(200)),
        (1, &[0xfe], Value::Int(-2)),
        (2, &[0x34, 0x12], Value::Uint(0x1234)),
        (3, &[0xff, 0xff], Value::Int(-1)),
        (12, &1e300f64.to_le_bytes(), Value::Float(1e300)),
        (7, &[0], Value::Bool(false)),
    ];
    for (ty, bytes, value) in scalars {
        let raw = common::Raw::new(2, 0, 1).pair("k", ty, bytes);
        let read = Checkpoint::from_bytes(raw.0.into()).unwrap();
        assert_eq!(read.metadata.get("k"), Some(&value), "type {ty}");
        assert!(matches!(read.files[0].kind, FileKind::Gguf { version: 2, .. }));
    }
    let wide = common::Raw::new(3, 0, 1).string("k").u32(9).u32(12).u64(1).bytes(&0.5f64.to_le_bytes());
    let read = Checkpoint::from_bytes(wide.0.into()).unwrap();
    assert_eq!(read.metadata.get("k"), Some(&Value::Floats(vec![0.5])));
}

#[test]
fn a_scalar_tensor_is_a_row_of_one() {
    let bytes = common::Raw::new(3, 1, 0).info("s", &[], 0, 0).data(4);
    let read = Checkpoint::from_bytes(bytes.into()).unwrap();
    assert_eq!((read.tensors["s"].cols(), read.tensors["s"].rows()), (1, 1));
}

#[test]
fn tensors_may_be_stored_in_any_order_with_gaps() {
    let bytes = common::Raw::new(3, 2, 0).info("late", &[4], 0, 96).info("early", &[4], 0, 32).data(112);
    let read = Checkpoint::from_bytes(bytes.into()).unwrap();
    assert_eq!(read.tensors.keys().collect::<Vec<_>>(), ["late", "early"]);
}

#[test]
fn the_writer_rejects_what_no_reader_accepts() {
    let mut writer = Writer::new(Metadata::default());
    let mut declare = |name: &str, dims: &[u64]| writer.declare(name, &Q1_0, dims).unwrap_err().to_string();
    assert_eq!(declare("x", &[100]), "tensor `x`: rows of 100 weights, want a multiple of 128 for Q1_0");
    assert_eq!(declare("x", &[128, 0]), "tensor `x`: shape [128, 0] has a zero dimension");
    assert_eq!(declare("x", &[]), "tensor `x`: 0 dimensions, want 1 to 4");
    assert_eq!(declare("x", &[128, 1, 1, 1, 1]), "tensor `x`: 5 dimensions, want 1 to 4");
    assert_eq!(
        declare("x", &[1 << 40, 1 << 40]),
        format!("tensor `x`: shape [{0}, {0}] is too large", 1u64 << 40)
    );
    assert_eq!(declare("", &[128]), "tensor ``: the name has 0 bytes, want 1 to 255");

    writer.declare("x", &Q1_0, &[128]).unwrap();
    let twice = writer.declare("x", &Q1_0, &[128]).unwrap_err();
    assert_eq!(twice.to_string(), "tensor `x`: duplicate name");
    let short = writer.write_to(&mut Vec::new(), |_, out| out.write_all(&[0; 17])).unwrap_err();
    assert_eq!(short.to_string(), "tensor `x`: want 18 bytes of data, 17 were written");

    let with = |key: &str, value| {
        let mut metadata = Metadata::default();
        metadata.insert(key, value);
        Writer::new(metadata).write_to(&mut Vec::new(), |_, _| Ok(())).unwrap_err().to_string()
    };
    assert_eq!(with("", Value::Uint(1)), "metadata key ``: the key must not be empty");
    assert_eq!(
        with("general.alignment", Value::Uint(48)),
        "metadata key `general.alignment`: want a power of two, file has 48"
    );
    assert_eq!(
        with("general.alignment", Value::Int(32)),
        "metadata key `general.alignment`: want an unsigned integer"
    );
}

#[test]
fn a_full_disk_is_an_error() {
    let writer = Writer::new(Metadata::default());
    let mut small = [0u8; 10];
    let error = writer.write_to(&mut small.as_mut_slice(), |_, _| Ok(())).unwrap_err();
    assert!(matches!(error, FormatError::Write(_)), "{error}");
}

#[test]
fn ternary_layouts_are_transcoded_without_loss_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    // rows of weights of -1, 0 and 1 times 0.5, and others
    let ternary: Vec<f32> = (0..8192).map(|i| [0.5, -0.5, 0.0, 0.5, 0.0][i % 5]).collect();
    let other: Vec<f32> = (0..8192).map(|i| i as f32 / 8192.0).collect();
    let convert = |weights: &[f32], from: &'static Quant, to: &'static Quant| {
        let mut data = vec![];
        from.encode(weights, &mut data).unwrap();
        let mut metadata = Metadata::default();
        if from == &tern_quant::TQ2_0_G128 {
            metadata.insert("general.quantization_version", text("TQ2_0_g128"));
        }
        let mut writer = Writer::new(metadata);
        writer.declare("m.weight", from, &[256, 32]).unwrap();
        writer.declare("n", &F32, &[4]).unwrap(); // what follows decides which layout a type id means
        let mut file = vec![];
        writer.write_to(&mut file, |i, out| out.write_all([&data[..], &[0; 16]][i])).unwrap();
        let source = Checkpoint::from_bytes(file.into()).unwrap();
        let out = folder.path().join("out.gguf");
        let mut conversion = Conversion { threads: 2, ..Conversion::unchanged(&source) };
        conversion.tensors[0].format = to;
        conversion.write(&source, &out, &mut |_| ()).map(|_| {
            let mut again = vec![0.0; 8192];
            let tensor = &Checkpoint::open(&out).unwrap().tensors["m.weight"];
            assert_eq!(tensor.quant.name, to.name);
            let data = tensor.data();
            let (blocks, tail) = data.split_at(data.len() - to.tail);
            to.decode(blocks, tail, &mut again);
            again
        })
    };
    let layouts = [
        &tern_quant::Q2_0,
        &tern_quant::Q2_0_G128,
        &tern_quant::PQ2_0,
        &tern_quant::PTQ1_0,
        &tern_quant::TQ2_0,
        &tern_quant::TQ1_0,
        &tern_quant::TQ2_0_G128,
        &tern_quant::I2_S,
    ];
    for from in layouts {
        for to in layouts {
            assert_eq!(convert(&ternary, from, to).unwrap(), ternary, "{from} to {to}");
        }
    }
    // two scales in one tensor are one too many for a format with one
    let scales: Vec<f32> =
        ternary.iter().enumerate().map(|(i, w)| if i < 4096 { *w } else { 2.0 * w }).collect();
    assert_eq!(convert(&scales, &tern_quant::Q2_0, &tern_quant::TQ1_0).unwrap(), scales);
    let error = convert(&scales, &tern_quant::Q2_0, &tern_quant::I2_S).unwrap_err().to_string();
    assert_eq!(error, "m.weight: weight 0 of row 0 is 0.5, and would be 1 in I2_S");
    let error = convert(&other, &tern_quant::Q8_0, &tern_quant::Q2_0).unwrap_err().to_string();
    assert!(error.starts_with("m.weight: weight ") && error.ends_with(" in Q2_0"), "{error}");
    let error = convert(&other, &tern_quant::F32, &tern_quant::Q8_0).unwrap_err();
    assert_eq!(error.to_string(), "m.weight: Q8_0 would change its weights");
    let FormatError::Conversion(_, why) = error else { panic!("{error}") };
    assert!(why.needs_quantizing());
    let left = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = left.filter(|name| name.to_string_lossy().contains(".part")).collect();
    assert!(left.is_empty(), "no part of a file is left: {left:?}");
}

/// A model of four tensors of 64 bytes each.
#[expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]
fn small_model() -> Checkpoint {
    let mut writer = Writer::new(file_keys());
    for i in 0..4 {
        writer.declare(&format!("t{i}.weight"), &F32, &[8, 2]).unwrap();
    }
    let mut file = vec![];
    writer.write_to(&mut file, |i, out| out.write_all(&[i as u8; 64])).unwrap();
    Checkpoint::from_bytes(file.into()).unwrap()
}

fn file_keys() -> Metadata {
    let mut metadata = Metadata::default();
    metadata.insert("general.architecture", text("qwen3"));
    metadata
}

#[test]
fn a_model_is_split_into_files_that_are_one_model() {
    let (model, folder) = (small_model(), tempfile::tempdir().unwrap());
    let out = folder.path().join("model.gguf");
    let names = || {
        let mut names: Vec<_> = folder
            .path()
            .read_dir()
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    let whole = Conversion::unchanged(&model);
    // the largest file, and how many there are: smaller than a tensor, two tensors, three, exactly all, more
    for (most, files) in [(1, 4), (64, 4), (128, 2), (191, 2), (192, 2), (256, 1), (u64::MAX, 1)] {
        let mut steps = vec![];
        let conversion = Conversion { max_file: Some(most), ..whole.clone() };
        let written = conversion.write(&model, &out, &mut |done| steps.push(done)).unwrap();
        assert_eq!((written.files, written.tensors), (files, 4), "{most} bytes");
        assert_eq!(steps, [64, 128, 192, 256], "{most} bytes");
        let want: Vec<String> = match files {
            1 => vec!["model.gguf".into()],
            _ => (1..=files).map(|i| format!("model-{i:05}-of-{files:05}.gguf")).collect(),
        };
        assert_eq!(names(), want, "{most} bytes");
        let again = Checkpoint::open(&written.path).unwrap();
        assert_eq!(again.metadata, model.metadata);
        assert_eq!(again.files.iter().map(|file| file.bytes).sum::<u64>(), written.bytes);
        for (name, tensor) in &model.tensors {
            assert_eq!(again.tensors[name].data(), tensor.data(), "{name}, {most} bytes");
        }
        want.iter().for_each(|name| std::fs::remove_file(folder.path().join(name)).unwrap());
    }
    // nothing is left of a conversion that fails
    let mut refused = Conversion { max_file: Some(64), ..whole };
    refused.tensors[3].format = &Q4_K;
    refused.write(&model, &out, &mut |_| ()).unwrap_err();
    assert_eq!(names(), [""; 0]);
}
