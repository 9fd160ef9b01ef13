//! The table of formats in docs/formats.md has every format, its size and whether it can be written.

use tern_quant::{ALL, Quant};

#[test]
fn the_table_of_formats_is_complete() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/formats.md");
    let docs = std::fs::read_to_string(path).expect("docs/formats.md");
    let mut formats: Vec<&Quant> = ALL.iter().copied().filter(|quant| quant.is_runnable()).collect();
    formats.sort_by(|a, b| a.bits_per_weight().total_cmp(&b.bits_per_weight()).then(a.name.cmp(b.name)));
    let row = |quant: &&Quant| {
        let writes = if quant.encode.is_some() { "yes" } else { "no" };
        format!("| {} | {} | {writes} |\n", quant.name, quant.bits_per_weight())
    };
    let table: String = formats.iter().map(row).collect();
    let named: Vec<&str> = ALL.iter().filter(|quant| !quant.is_runnable()).map(|quant| quant.name).collect();
    let named = format!("Known by name and size only: {}.\n", named.join(", "));
    assert!(docs.contains(&format!("|---|---:|:-:|\n{table}\n")), "docs/formats.md, want the table\n{table}");
    assert!(docs.contains(&named), "docs/formats.md, want the line\n{named}");
    let readme =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md")).expect("README.md");
    let count = format!("in {} block", formats.len());
    assert!(readme.contains(&count), "README.md, want `{count} formats`");
}
