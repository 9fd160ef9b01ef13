//! Hostile files: each is rejected with the message that names its fault.

mod common;

use common::{Raw, refusal};

/// Checks every `(file, message)` of a group.
fn check(cases: Vec<(Vec<u8>, &str)>) {
    for (bytes, sentence) in cases {
        assert_eq!(refusal(bytes), sentence);
    }
}

#[test]
fn other_kinds_of_files() {
    check(vec![
        (vec![], "not a GGUF file: it starts with \"\", want \"GGUF\""),
        (b"GG".to_vec(), "not a GGUF file: it starts with \"GG\", want \"GGUF\""),
        (b"\x7fELF....".to_vec(), "not a GGUF file: it starts with \"\\x7fELF\", want \"GGUF\""),
        (b"GGUF".to_vec(), "the file ends inside the header: want 4 more bytes, 0 are left"),
        (
            Raw::new(3, 0, 0).0[..20].to_vec(),
            "the file ends inside the header: want 8 more bytes, 4 are left",
        ),
        (Raw::new(1, 0, 0).0, "GGUF version 1 is obsolete, want version 2 or 3: convert the model again"),
        (Raw::new(0, 0, 0).0, "GGUF version 0 is unknown, want version 2 or 3"),
        (Raw::new(4, 0, 0).0, "GGUF version 4 is unknown, want version 2 or 3"),
        (Raw::new(3 << 24, 0, 0).0, "the file is big-endian (GGUF version 3), want little-endian"),
    ]);
}

#[test]
fn counts_that_overflow() {
    check(vec![
        (
            Raw::new(3, 0, u64::MAX).0,
            "the metadata: 18446744073709551615 entries cannot fit in the remaining 0 bytes",
        ),
        (
            Raw::new(3, u64::MAX, 0).0,
            "the tensor list: 18446744073709551615 entries cannot fit in the remaining 0 bytes",
        ),
        (
            Raw::new(3, 1 << 60, 0).bytes(&[0; 99]).0,
            "the tensor list: 1152921504606846976 entries cannot fit in the remaining 99 bytes",
        ),
        (
            Raw::new(3, 0, 2).pair("a", 0, &[0]).0,
            "the metadata: 2 entries cannot fit in the remaining 14 bytes",
        ),
        (
            Raw::new(3, 0, 2).pair("abcdefghijklmno", 0, &[0]).0,
            "the file ends inside the metadata: want 8 more bytes, 0 are left",
        ),
    ]);
}

#[test]
fn more_entries_than_are_supported() {
    let tensors = Raw::new(3, (1 << 20) + 1, 0).bytes(&vec![0; 26 << 20]).0;
    let keys = Raw::new(3, 0, (1 << 16) + 1).bytes(&vec![0; 1 << 20]).0;
    let array =
        |raw: Raw, key, count: u64| raw.string(key).u32(9).u32(0).u64(count).bytes(&vec![0; count as usize]);
    let arrays = array(array(Raw::new(3, 0, 2), "a", 1 << 23), "b", (1 << 23) + 1).0;
    check(vec![
        (tensors, "the tensor list: 1048577 entries, want at most 1048576"),
        (keys, "the metadata: 65537 entries, want at most 65536"),
        (arrays, "the arrays of the metadata: 16777217 entries, want at most 16777216"),
    ]);
}

#[test]
fn strings_that_overflow() {
    let huge = Raw::new(3, 0, 1).string("k").u32(8).u64(u64::MAX).0;
    let long = Raw::new(3, 0, 1).string("k").u32(8).u64(5).bytes(b"1234").0;
    let key = Raw::new(3, 0, 1).u64(u64::MAX).bytes(&[b'x'; 20]).0;
    let key_past_end = Raw::new(3, 0, 1).u64(60_000).bytes(&[b'x'; 20]).0;
    let name = Raw::new(3, 1, 0).u64(u64::MAX).bytes(&[0; 40]).0;
    let no_name = Raw::new(3, 1, 0).info("", &[4], 0, 0).data(16);
    check(vec![
        (huge, "the file ends inside metadata key `k`: want 18446744073709551615 more bytes, 0 are left"),
        (long, "the file ends inside metadata key `k`: want 5 more bytes, 4 are left"),
        (key, "metadata key `?`: the key has 18446744073709551615 bytes, want at most 65535"),
        (key_past_end, "the file ends inside the metadata: want 60000 more bytes, 20 are left"),
        (name, "tensor `#0`: the name has 18446744073709551615 bytes, want 1 to 255"),
        (no_name, "tensor `#0`: the name has 0 bytes, want 1 to 255"),
    ]);
}

#[test]
fn arrays_that_overflow() {
    let array = |ty, count| Raw::new(3, 0, 1).string("k").u32(9).u32(ty).u64(count).bytes(&[0; 16]).0;
    check(vec![
        (
            array(0, u64::MAX),
            "metadata key `k`: 18446744073709551615 entries cannot fit in the remaining 16 bytes",
        ),
        (
            array(10, 1 << 61),
            "metadata key `k`: 2305843009213693952 entries cannot fit in the remaining 16 bytes",
        ),
        (array(8, 3), "metadata key `k`: 3 entries cannot fit in the remaining 16 bytes"),
        (array(6, 5), "metadata key `k`: 5 entries cannot fit in the remaining 16 bytes"),
        (array(9, 1), "metadata key `k`: arrays of arrays are not supported"),
        (array(9, 0), "metadata key `k`: arrays of arrays are not supported"),
        (array(13, 1), "metadata key `k`: value type 13 is unknown, want 0 to 12"),
    ]);
}

#[test]
fn invalid_pairs() {
    let twice = Raw::new(3, 0, 2).pair("k", 0, &[1]).pair("k", 0, &[1]).0;
    check(vec![
        (twice, "metadata key `k`: duplicate key"),
        (Raw::new(3, 0, 1).pair("", 4, &[0; 9]).0, "metadata key ``: the key must not be empty"),
        (Raw::new(3, 0, 1).pair("k", 99, &[0]).0, "metadata key `k`: value type 99 is unknown, want 0 to 12"),
        (Raw::new(3, 0, 1).pair("k", 7, &[2]).0, "metadata key `k`: want a bool of 0 or 1, file has 2"),
        (
            Raw::new(3, 0, 1).string("k").u32(8).u64(1).bytes(&[0xff]).0,
            "metadata key `k`: want UTF-8 text, file has invalid bytes",
        ),
        (
            Raw::new(3, 0, 1).u64(2).bytes(&[b'k', 0xff]).u32(0).bytes(&[0]).0,
            "metadata key `k\u{fffd}`: want UTF-8 text, file has invalid bytes",
        ),
    ]);
}

#[test]
fn invalid_alignments() {
    let with = |ty, value: &[u8]| Raw::new(3, 0, 1).pair("general.alignment", ty, value).0;
    check(vec![
        (with(4, &0u32.to_le_bytes()), "metadata key `general.alignment`: want a power of two, file has 0"),
        (with(4, &33u32.to_le_bytes()), "metadata key `general.alignment`: want a power of two, file has 33"),
        (
            with(10, &32u64.to_le_bytes()),
            "metadata key `general.alignment`: want a u32, file has value type 10",
        ),
        (
            with(5, &32u32.to_le_bytes()),
            "metadata key `general.alignment`: want a u32, file has value type 5",
        ),
    ]);
    let vast =
        Raw::new(3, 1, 1).pair("general.alignment", 4, &(1u32 << 31).to_le_bytes()).info("t", &[4], 0, 0);
    assert_eq!(
        refusal(vast.data(16)),
        "tensor `t`: offset 0 and size 16 exceed the 0 bytes of tensor data in the file"
    );
}

#[test]
fn shapes_that_overflow() {
    let with = |dims: &[u64], ty| Raw::new(3, 1, 0).info("t", dims, ty, 0).data(64);
    check(vec![
        (with(&[1 << 32, 1 << 32], 0), "tensor `t`: shape [4294967296, 4294967296] is too large"),
        (with(&[u64::MAX], 0), "tensor `t`: shape [18446744073709551615] is too large"),
        // a product that wraps around to four weights
        (with(&[1 << 62, 4, 1, 1], 0), "tensor `t`: shape [4611686018427387904, 4, 1, 1] is too large"),
        (with(&[1 << 62], 0), "tensor `t`: shape [4611686018427387904] is too large"),
        (
            with(&[1 << 62], 24),
            "tensor `t`: offset 0 and size 4611686018427387904 exceed the 64 bytes of tensor data in the file",
        ),
        (with(&[4, 0], 0), "tensor `t`: shape [4, 0] has a zero dimension"),
        (with(&[1; 5], 0), "tensor `t`: 5 dimensions, want 1 to 4"),
        (with(&[33], 2), "tensor `t`: rows of 33 weights, want a multiple of 32 for Q4_0"),
        (with(&[16, 2], 2), "tensor `t`: rows of 16 weights, want a multiple of 32 for Q4_0"),
    ]);
    let many = Raw::new(3, 1, 0).string("t").u32(u32::MAX).bytes(&[0; 64]).0;
    assert_eq!(refusal(many), "tensor `t`: 4294967295 dimensions, want 1 to 4");
}

#[test]
fn data_outside_the_file() {
    let with = |offset, data| Raw::new(3, 1, 0).info("t", &[16], 0, offset).data(data);
    check(vec![
        (with(0, 63), "tensor `t`: offset 0 and size 64 exceed the 63 bytes of tensor data in the file"),
        (with(32, 64), "tensor `t`: offset 32 and size 64 exceed the 64 bytes of tensor data in the file"),
        (
            with(u64::MAX - 31, 64),
            "tensor `t`: offset 18446744073709551584 and size 64 exceed the 64 bytes of tensor data in the file",
        ),
        (with(8, 128), "tensor `t`: offset 8 is not a multiple of the alignment 32"),
    ]);
    let cut = Raw::new(3, 1, 0).info("t", &[16], 0, 0).0;
    assert_eq!(
        refusal(cut[..cut.len() - 3].to_vec()),
        "the file ends inside the entry of tensor `t`: want 8 more bytes, 5 are left"
    );
    assert_eq!(
        refusal(cut),
        "tensor `t`: offset 0 and size 64 exceed the 0 bytes of tensor data in the file"
    );
}

#[test]
fn tensors_that_overlap() {
    let overlap = Raw::new(3, 2, 0).info("a", &[16], 0, 32).info("b", &[16], 0, 0).data(96);
    let twice = Raw::new(3, 2, 0).info("a", &[8], 0, 0).info("a", &[8], 0, 32).data(64);
    check(vec![
        (overlap, "tensors `b` and `a` overlap: `b` ends at offset 64, `a` starts at 32"),
        (twice, "tensor `a`: duplicate name"),
    ]);
}

#[test]
fn unknown_type_ids() {
    for id in [4, 5, 31, 32, 33, 43, 144, u32::MAX] {
        let bytes = Raw::new(3, 1, 0).info("t", &[256], id, 0).data(4096);
        assert_eq!(refusal(bytes), format!("tensor `t`: type id {id} is unknown"));
    }
}
