//! Hashes of the machine code of kernels: a change that is to leave it as it is proves so.

use sha2::{Digest, Sha256};

/// The machine code of a program: an ELF file.
pub(super) struct CompiledProgram {
    pub(super) name: String,
    pub(super) code: Vec<u8>,
}

/// A line for each kernel: its program, its name, its bytes and a hash of them.
pub(super) fn hashes(programs: &[CompiledProgram]) -> String {
    let mut text = String::new();
    for program in programs {
        let mut kernels = sections(&program.code, ".text.");
        kernels.sort();
        for (kernel, code) in kernels {
            let hash: String = Sha256::digest(code)[..8].iter().map(|b| format!("{b:02x}")).collect();
            text += &format!("{} {kernel}: {} bytes, {hash}\n", program.name, code.len());
        }
    }
    text
}

/// The sections of an ELF file whose names begin so: the rest of the name, and what is in it.
fn sections<'a>(file: &'a [u8], prefix: &str) -> Vec<(String, &'a [u8])> {
    let number = |at: usize, bytes: usize| {
        let mut value = [0; 8];
        value[..bytes].copy_from_slice(&file[at..at + bytes]);
        u64::from_le_bytes(value) as usize
    };
    assert_eq!(&file[..5], b"\x7fELF\x02", "machine code is an ELF file of 64 bits");
    let (table, entry, count, names) = (number(0x28, 8), number(0x3a, 2), number(0x3c, 2), number(0x3e, 2));
    let body = |index: usize| {
        let at = table + index * entry;
        &file[number(at + 24, 8)..][..number(at + 32, 8)]
    };
    let mut found = vec![];
    for index in 0..count {
        let name = &body(names)[number(table + index * entry, 4)..];
        let end = name.iter().position(|b| *b == 0).unwrap_or(name.len());
        let name = String::from_utf8_lossy(&name[..end]);
        if let Some(kernel) = name.strip_prefix(prefix) {
            found.push((kernel.to_string(), body(index)));
        }
    }
    assert!(!found.is_empty(), "machine code has sections that begin with {prefix}");
    found
}
