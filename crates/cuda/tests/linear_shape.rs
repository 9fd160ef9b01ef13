//! The records that a fused step reads for a linear (`kernels/linear/linear_shape.cuh`), as the blocks of a
//! GPU compute them: each chunk of each tile is read by one block, once, and of experts those of the chosen
//! ones. A C++ compiler of the machine runs the same file.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What the file needs of the other kernels, and a check of one shape. Records are read as in `Reader` of
/// `kernels/fused_step/ring.cuh`.
const PROGRAM: &str = r#"
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>
#define DEVICE inline
using std::max;
using std::min;
typedef unsigned u32;
enum { TILE = 16, CHUNK = 128, WARPS = 16 };
enum { NORMED = 1, ADDED = 2, GATHERED = 4, OUTPUTS_ONLY = 8, BIASED = 16, SCALED = 32, FRESH_X = 64, STAGED_X = 128, PASSED_Y = 256,
       PASSED_IN_BITS_ORDER = 512, X_TAGGED = 1024, ADD_TAGGED = 2048, MIXED = 4096, FIELDS_X = 8192, CONVOLVED = 16384,
       HALF_ROUNDS = 32768 };
struct { unsigned x; } blockIdx;
struct Sizes { static constexpr int SLOTS = RING_SLOTS; };
template <int N> struct Format { static constexpr int BYTES = N; static constexpr bool SIGNS = false; };
template <int FORMAT> struct FormatOf { typedef Format<FORMAT> Is; };
#include LINEAR_SHAPE

static int wrong = 0;
static void check(bool right, const char* shape, const char* what) {
    if (!right) wrong++, printf("%s: %s\n", shape, what);
}

// Counts how often each chunk is read: [chosen expert][part][tile][chunk of a matrix].
template <class L> void shape(const char* name) {
    const int parts = L::GATED ? 2 : 3, experts = L::USED > 0 ? L::USED : 1, tiles[] = {L::A::TILES, L::B::TILES, L::C::TILES};
    const int most = max(tiles[0], max(tiles[1], tiles[2]));
    std::vector<int> reads((size_t)experts * parts * most * L::MATRIX_CHUNKS);
    auto at = [&](int expert, int part, int tile, int chunk) -> int& {
        bool inside = expert >= 0 && expert < experts && part < parts && tile >= 0 && tile < tiles[part] && chunk >= 0 && chunk < L::MATRIX_CHUNKS;
        if (!inside) check(false, name, "outside"), exit(1);
        return reads[((size_t)(expert * parts + part) * most + tile) * L::MATRIX_CHUNKS + chunk];
    };
    for (blockIdx.x = 0; blockIdx.x < BLOCKS; blockIdx.x++) {
        const int slots = L::units() * L::EACH * L::PIECES;
        for (int n = 0; n < slots; n++) {
            int tile, piece, i = L::tile_of_slot(n, piece), part = L::find(i, tile);
            check(i < L::units() * L::EACH && piece < L::PIECES, name, "a tile of another block");
            int from = piece * L::SLOT_CHUNKS, to = min(L::CHUNKS, from + L::SLOT_CHUNKS);
            if (L::GATED) { // both parts of a pair are of the same rows
                int other;
                check(L::find(i ^ 1, other) == (part ^ 1) && other == tile, name, "a pair of different rows");
            }
            if (L::MIX) {
                int next = from;
                for (int r = 0; r < L::runs(from, to); r++) {
                    auto run = L::run_of(from, to, r);
                    check(run.first == next && run.end > run.first, name, "runs leave gaps");
                    for (next = run.first; next < run.end; next++) at(run.index, 0, tile, next - run.index * L::MATRIX_CHUNKS)++;
                }
                check(next == to, name, "runs end early");
            } else {
                for (int chunk = from; chunk < to; chunk++) at(L::USED > 0 ? L::chosen_of(i) : 0, part, tile, chunk)++;
            }
        }
    }
    for (int e = 0; e < experts; e++)
        for (int p = 0; p < parts; p++)
            for (int t = 0; t < tiles[p]; t++)
                for (int c = 0; c < L::MATRIX_CHUNKS; c++) check(at(e, p, t, c) == 1, name, "a chunk is not read once");
}

#define SHAPE(...) shape<LinearShape<__VA_ARGS__>>(#__VA_ARGS__)
typedef PartShape<1, 0> None;

int main() {
    // q, k and v; the same in other formats
    SHAPE(2048, NORMED, 0, 1, 0, PartShape<1088, 4096>, PartShape<1088, 512>, PartShape<1088, 512>);
    SHAPE(2048, NORMED, 0, 1, 0, PartShape<1088, 4096>, PartShape<2176, 512>, PartShape<1088, 24>);
    SHAPE(4096, ADDED, 0, 2, 0, PartShape<576, 2056>, None, None);
    SHAPE(2048, NORMED, 1, 1, 0, PartShape<576, 6144>, PartShape<576, 6144>, None);
    SHAPE(2048, 0, 1, 1, 8, PartShape<1088, 768>, PartShape<1088, 768>, None); // gate and up of experts
    SHAPE(2880, BIASED, 4, 2, 4, PartShape<1088, 2880>, PartShape<1088, 2880>, None);
#if RING_SLOTS >= 8
    SHAPE(4096, ADDED | HALF_ROUNDS, 0, 1, 0, PartShape<2176, 4096>, None, None); // a slot has half a round
    SHAPE(5120, HALF_ROUNDS, 1, 1, 0, PartShape<2176, 4096>, PartShape<2176, 4096>, None); // five halves
#endif
    SHAPE(256, 0, 0, 1, 3, PartShape<288, 40>, None, None); // fewer units than blocks
    SHAPE(768, MIXED, 0, 1, 8, PartShape<1088, 2048>, None, None); // down
    SHAPE(768, MIXED | ADDED, 0, 3, 8, PartShape<1088, 2048>, None, None);
    SHAPE(2880, MIXED | ADDED, 0, 2, 4, PartShape<1088, 2880>, None, None);
    SHAPE(192, MIXED, 0, 1, 3, PartShape<288, 17>, None, None);
    return wrong ? 1 : 0;
}
"#;

/// The compiler that builds for this machine, or `None`.
fn compiler() -> Option<String> {
    let name = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
    Command::new(&name).arg("--version").output().is_ok_and(|out| out.status.success()).then_some(name)
}

fn run(compiler: &str, folder: &Path, header: &Path, blocks: usize, slots: usize) -> Result<(), String> {
    let (source, program) = (folder.join("linear_shape.cpp"), folder.join("linear_shape"));
    std::fs::write(&source, PROGRAM).map_err(|e| e.to_string())?;
    // PROGRAM has what the file needs of those that it includes
    for file in ["weights/record.cuh", "host/sizes.cuh"].map(|file| folder.join(file)) {
        std::fs::create_dir_all(file.parent().unwrap_or(folder)).map_err(|e| e.to_string())?;
        std::fs::write(file, "").map_err(|e| e.to_string())?;
    }
    let built = Command::new(compiler)
        .args(["-std=c++17", "-O1", "-o"])
        .arg(&program)
        .arg(format!("-I{}", folder.display()))
        .arg(format!("-DLINEAR_SHAPE=\"{}\"", header.display()))
        .args([format!("-DBLOCKS={blocks}"), format!("-DRING_SLOTS={slots}")])
        .arg(&source)
        .output();
    let built = built.map_err(|e| e.to_string())?;
    if !built.status.success() {
        return Err(String::from_utf8_lossy(&built.stderr).into_owned());
    }
    let ran = Command::new(&program).output().map_err(|e| e.to_string())?;
    if ran.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&ran.stdout).into_owned()) }
}

#[test]
fn every_chunk_of_the_chosen_experts_is_read_once() {
    let Some(compiler) = compiler() else {
        println!(
            "skipped: every_chunk_of_the_chosen_experts_is_read_once (there is no C++ compiler: c++ or CXX)"
        );
        return;
    };
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/linear/linear_shape.cuh");
    for (blocks, slots) in [(132, 8), (7, 3), (108, 20)] {
        let result = run(&compiler, &folder, &header, blocks, slots);
        assert_eq!(result, Ok(()), "{blocks} blocks, {slots} slots");
    }
}
