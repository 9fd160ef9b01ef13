//! The table of architectures in docs/models.md has every architecture.

#[test]
fn the_table_of_architectures_is_complete() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/models.md");
    let docs = std::fs::read_to_string(path).expect("docs/models.md");
    let (_, table) = docs.split_once("| `general.architecture` | models |\n|---|---|\n").expect("the table");
    let rows = table.lines().take_while(|line| line.starts_with('|'));
    let mut listed: Vec<&str> = rows.filter_map(|row| row.split('`').nth(1)).collect();
    let mut known: Vec<&str> = tern_models::ALL.iter().map(|arch| arch.name).collect();
    listed.sort_unstable();
    known.sort_unstable();
    assert_eq!(listed, known, "docs/models.md, `general.architecture`");
}
