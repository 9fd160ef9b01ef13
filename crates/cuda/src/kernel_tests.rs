//! Kernels without a GPU: NVRTC compiles all of them.

mod machine_code;

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use self::machine_code::{CompiledProgram, hashes};
use crate::driver::{Nvrtc, SearchPaths, Source, compile_options};
use tern_graph::{Activation, Gating};
use tern_quant::{MXFP4, Q4_K, Quant, TQ2_0};

use crate::launch::{
    FusedMemory, FusedSource, FusedStepPlan, KernelKey, KernelShape, Limits, Ring, RopeTable, linear_source,
    recurrent_source,
};
use crate::lower::{
    AttentionShape, ExpertSizes, KernelConfig, LinearShape, Lowered, PartShape, Strategy, expert_decoder_of,
    linear_defines, lower, rotated_hybrid,
};
use crate::programs::typical;
use crate::shared::{
    ADD_TAGGED, ADDED, BIASED, FIELDS_X, FRESH_X, KvCell, NORMED, PASSED_Y, SCALED, STAGED_X, X_TAGGED,
};
use crate::weights::Layout;

/// Bytes that a kernel may spill: registers of a caller that a function saves, and what a fused step
/// holds across its phases.
const SAVED: usize = 256;

/// The version of NVRTC whose machine code the snapshot has; `.ci/run` installs it.
const SNAPSHOT_NVRTC: (i32, i32) = (13, 0);

fn spilled(line: &str) -> Option<usize> {
    line.split_once(" bytes spill stores")?.0.rsplit(' ').next()?.parse().ok()
}

/// The fused step of one token of a decoder with experts, on an H200.
fn expert_step(format: &'static Quant, sizes: ExpertSizes) -> String {
    let graph = expert_decoder_of(sizes);
    let codes = |name: &str| (name != "router" && !name.ends_with(".bias")).then_some(format);
    let Lowered { config, phases } = lower(&graph, codes, Strategy::FusedStep);
    let ropes = [RopeTable { at: 0, pairs: 32, parted: false }];
    let plan = FusedStepPlan { tokens: 1, config: &config, phases: &phases, ropes: &ropes, inputs: 0 };
    FusedSource::of(&plan, 132, 227 << 10).unwrap().kernel.text()
}

/// What an H200 offers, but for the instructions of a generation.
fn limits(architecture: &str, reproducible: bool) -> Limits {
    let warpgroups = architecture == "sm_90a";
    Limits {
        processors: 132,
        shared_memory: 227 << 10,
        clusters: true,
        warpgroups,
        reproducible,
        bytes: warpgroups,
    }
}

/// The compiler of TERN_TEST_TOOLS, or a line that says why a test is skipped.
fn nvrtc(test: &str) -> Option<Nvrtc> {
    let Some(tools) = std::env::var_os("TERN_TEST_TOOLS").map(PathBuf::from) else {
        println!("skipped: {test} (TERN_TEST_TOOLS is not set)");
        return None;
    };
    let pythons = fs::read_dir(tools.join("lib")).into_iter().flatten().flatten();
    let site_packages = pythons.map(|e| e.path().join("site-packages")).collect();
    match Nvrtc::open(&SearchPaths { toolkits: vec![], site_packages }) {
        Ok(nvrtc) => Some(nvrtc),
        Err(why) => {
            println!("skipped: {test} ({why})");
            None
        }
    }
}

/// Compiles a kernel, and checks that it spills few registers.
fn compile(nvrtc: &Nvrtc, name: &str, source: &str, architecture: &str) {
    compile_with(nvrtc, name, source, compile_options(architecture, false));
}

/// The same with these options.
fn compile_with(nvrtc: &Nvrtc, name: &str, source: &str, mut options: Vec<String>) {
    let architecture = options[0].clone();
    options.push("--ptxas-options=-v".into());
    let (_, log) = nvrtc.compile(name, source, &options).unwrap();
    let most = log.lines().filter_map(spilled).max().unwrap_or(0);
    let defines: Vec<&str> = source.lines().take_while(|l| l.starts_with("#define")).collect();
    assert!(most <= SAVED, "{name} for {architecture} spills {most} bytes: {defines:?}");
}

/// Kernels whose rows are reproducible: linears of one, two and four segments, and attention over segments.
#[test]
fn reproducible_kernels_compile() {
    let Some(nvrtc) = nvrtc("reproducible_kernels_compile") else { return };
    let mut sources = vec![];
    for quant in [&tern_quant::PQ2_0, &Q4_K] {
        let config = KernelConfig { formats: vec![Layout::of(quant).unwrap()], ..KernelConfig::default() };
        for (tokens, segments, gated) in [(8, 1, 0), (128, 4, 0), (256, 1, 1)] {
            let key =
                KernelKey { format: 0, tokens, row_warps: 8, segments, gated, experts: false, bytes: false };
            let source = linear_source(&config, key, &limits("sm_90a", true));
            sources.push((format!("{quant} {tokens} {segments}"), source.text()));
        }
    }
    for (head_dim, cells) in
        [(128, KvCell::Half), (64, KvCell::Int8), (256, KvCell::Half), (576, KvCell::Half)]
    {
        let v_dim = head_dim.min(512);
        let shape = KernelShape {
            head_dim,
            v_dim,
            group: 4,
            capped: false,
            sloped: false,
            images: false,
            cells,
            page_len: 32,
            reproducible: true,
        };
        sources.push((format!("attention {head_dim}"), shape.source(227 << 10).text()));
    }
    for (name, source) in sources {
        for architecture in ["sm_80", "sm_90a"] {
            if architecture == "sm_90a" || name.starts_with("attention") {
                compile_with(&nvrtc, &name, &source, compile_options(architecture, true));
            }
        }
    }
}

/// A change that is to leave machine code as it is leaves the snapshot as it is; others update it
/// (`cargo insta`, INSTA_UPDATE).
#[test]
fn typical_programs_have_the_machine_code_of_the_snapshot() {
    let test = "typical_programs_have_the_machine_code_of_the_snapshot";
    let Some(nvrtc) = nvrtc(test) else { return };
    if nvrtc.version != SNAPSHOT_NVRTC {
        println!("skipped: {test} (NVRTC is {:?}, not {SNAPSHOT_NVRTC:?})", nvrtc.version);
        return;
    }
    let compiled = typical().into_iter().map(|program| {
        let name = program.file().to_string();
        let (code, _) = nvrtc.compile(&name, &program.text(), &compile_options("sm_90a", false)).unwrap();
        CompiledProgram { name, code }
    });
    insta::assert_snapshot!(hashes(&compiled.collect::<Vec<_>>()));
}

/// Attention of encoders and towers: heads of 32 columns, slopes, images, heads that are followed by zeros.
#[test]
fn attention_of_encoders_compiles() {
    let Some(nvrtc) = nvrtc("attention_of_encoders_compiles") else { return };
    for (head_dim, sloped, images) in [(32, false, false), (64, true, false), (72, false, true)] {
        let cells = KvCell::Half;
        let kernels = KernelShape {
            head_dim,
            v_dim: head_dim,
            group: 1,
            capped: false,
            sloped,
            images,
            cells,
            page_len: 32,
            reproducible: false,
        };
        let source = kernels.source(227 << 10).text();
        ["sm_80", "sm_90a"]
            .iter()
            .for_each(|generation| compile(&nvrtc, "attention of encoders", &source, generation));
    }
}

/// The fused step of one token of a layer with a delta rule and one with attention, of rotated weights.
#[test]
fn a_fused_step_of_recurrent_layers_compiles() {
    let Some(nvrtc) = nvrtc("a_fused_step_of_recurrent_layers_compiles") else { return };
    let matrices = |name: &str| (name.len() > 1).then_some(&tern_quant::PQ2_0);
    let Lowered { config, phases } = lower(&rotated_hybrid(), matrices, Strategy::FusedStep);
    let plan = FusedStepPlan { tokens: 1, config: &config, phases: &phases, ropes: &[], inputs: 0 };
    let source = FusedSource::of(&plan, 132, 227 << 10).unwrap().kernel.text();
    assert!(source.contains(" STATE_ROWS = 64,"));
    ["sm_80", "sm_90a"].iter().for_each(|generation| compile(&nvrtc, "hybrid step", &source, generation));
}

/// Recurrent layers: states of known models, of tests and the largest ones, and what is around them.
#[test]
fn recurrent_kernels_compile() {
    let Some(nvrtc) = nvrtc("recurrent_kernels_compile") else { return };
    let all = ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"];
    let plain = [Source::Convolve, Source::Transform].map(|source| (source.with(&[]), &all[..]));
    let rows = [(23, &all[..1]), (128, &all[..]), (256, &all[3..4])];
    let rows = rows.map(|(rows, generations)| (recurrent_source(rows).text(), generations));
    for (source, generations) in plain.into_iter().chain(rows) {
        generations.iter().for_each(|generation| compile(&nvrtc, "recurrent", &source, generation));
    }
}

/// Every kernel compiles for every generation of GPUs, without a GPU, and spills few registers on an H200.
#[test]
fn every_kernel_compiles_for_every_generation() {
    let Some(nvrtc) = nvrtc("every_kernel_compiles_for_every_generation") else { return };
    let mut formats = vec![];
    for layout in tern_quant::ALL.iter().filter_map(|quant| Layout::of(quant)) {
        if !formats.contains(&layout) && !layout.is_halves() {
            formats.push(layout);
        }
    }
    let heads = |head_dim, v_dim, queries| {
        let capped = head_dim == 256;
        AttentionShape { head_dim, v_dim, queries, capped }
    };
    let shapes = [heads(128, 128, 8), heads(80, 48, 1), heads(256, 256, 4), heads(64, 64, 3)];
    // models of a few formats and one shape of heads each: together they have all formats and shapes
    let models = formats.chunks(4).zip(shapes.iter().cycle()).map(|(formats, shape)| KernelConfig {
        formats: formats.to_vec(),
        attentions: vec![*shape],
        page_len: 32,
    });
    let step = |config: &KernelConfig, tokens: usize| {
        let ropes = [RopeTable { at: 0, pairs: 64, parted: false }];
        let memory = FusedMemory::new(config, &[], &ropes, tokens, 132);
        let keys = config.attentions.iter().map(AttentionShape::slot).max().unwrap_or(0);
        let memory = memory.defines(Ring { slot: keys.max(9216), slots: 16 });
        // parts, a gate, a residual, rows that do not fill all warps, and every format
        let part = |format: usize, rows| PartShape { format: format as i32, rows };
        let last = config.formats.len() - 1;
        let alike = [last, 0].map(|i| Some(config.formats[i]).filter(Layout::is_signs));
        let alike = alike[0] == alike[1];
        let parts = [part(0, 4096), part(if alike { last } else { 0 }, 1000)];
        let shape = |flags, tagged, passed, shape: LinearShape| LinearShape {
            flags: flags | if tokens == 1 { tagged } else { passed },
            ..shape
        };
        let gated = [part(0, 12288), part(0, 12288)];
        let mut shapes = vec![
            shape(NORMED | BIASED, X_TAGGED, FRESH_X, LinearShape::new(4096, 2, &parts)),
            shape(NORMED, 0, PASSED_Y, LinearShape { gated: 1, ..LinearShape::new(4096, 2, &gated) }),
            shape(
                ADDED | SCALED,
                X_TAGGED | ADD_TAGGED,
                PASSED_Y,
                LinearShape::new(11008, 2, &[part(0, 4096)]),
            ),
        ];
        if tokens > 1 {
            let shape = LinearShape::new(5120, 1, &[part(0, 17408)]);
            shapes.push(LinearShape { flags: NORMED | STAGED_X, ..shape });
        }
        shapes.extend((1..=last).map(|f| LinearShape::new(2048, 1, &[part(f, 512)])));
        if tokens == 1 {
            let codes = config.formats.iter().enumerate().filter(|(_, f)| f.is_raised() && f.is_placed());
            let fields = codes.map(|(f, _)| LinearShape::new(5120, 3, &[part(f, 17408)]));
            shapes.extend(fields.map(|shape| LinearShape { flags: FIELDS_X | X_TAGGED, ..shape }));
        }
        let defines = [config.defines(), memory, linear_defines(&shapes, 132)].concat();
        if tokens == 1 { Source::FusedStep.with(&defines) } else { Source::FusedBatch.with(&defines) }
    };
    let (mut sources, mut linears) = (vec![], vec![]);
    for (i, config) in models.enumerate() {
        sources.push((if i == 0 { "one token" } else { "one token, other formats" }, step(&config, 1)));
        if i == 0 {
            sources.push(("several tokens", step(&config, 8)));
        }
        let name = if i == 0 { "phase launches" } else { "phase launches, other formats" };
        sources.push((name, Source::PhaseLaunches.with(&config.defines())));
        for format in 0..config.formats.len() {
            for (tokens, gated) in [(8, 1), (24, 0), (64, 1), (128, 0), (256, 1)] {
                if tokens == 256 && format > 0 {
                    continue; // takes ten times as long as the others
                }
                let name = match (tokens, (format + i) % 4) {
                    (256, _) => "linear of a large tile",
                    (_, 0) => "linear",
                    _ => "linear of another format",
                };
                let row_warps = if gated > 0 && tokens < 64 { 12 } else { 8 };
                let key = KernelKey {
                    format: format as i32,
                    tokens,
                    row_warps,
                    segments: 1,
                    gated,
                    experts: false,
                    bytes: false,
                };
                linears.push((name, config.clone(), key));
            }
        }
    }
    // few tokens and tall tiles, of codes of one bit and of two
    for quant in [&tern_quant::Q1_0, &tern_quant::PQ2_0] {
        let formats = vec![Layout::of(quant).unwrap()];
        let config = KernelConfig { formats, attentions: vec![shapes[0]], page_len: 32 };
        sources.extend([2, 4].map(|tokens| ("few tokens", step(&config, tokens))));
        for row_warps in [16, 20] {
            let key = KernelKey {
                format: 0,
                tokens: 32,
                row_warps,
                segments: 1,
                gated: 1,
                experts: false,
                bytes: false,
            };
            linears.push(("linear of tall tiles", config.clone(), key));
        }
        for gated in [0, 1] {
            let key = KernelKey {
                format: 0,
                tokens: 128,
                row_warps: 8,
                segments: 1,
                gated,
                experts: false,
                bytes: true,
            };
            linears.push(("linear of bytes", config.clone(), key));
        }
    }
    let experts =
        KernelConfig { formats: vec![Layout::of(&tern_quant::Q4_K).unwrap()], ..KernelConfig::default() };
    for (tokens, gated) in [(8, 0), (48, 1), (128, 1)] {
        let key =
            KernelKey { format: 0, tokens, row_warps: 8, segments: 1, gated, experts: true, bytes: false };
        linears.push(("linear of another format", experts.clone(), key));
    }
    for (i, shape) in shapes.iter().enumerate() {
        let cells = [KvCell::Half, KvCell::Int8, KvCell::Fp8][i % 3];
        let AttentionShape { head_dim, v_dim, queries, capped } = *shape;
        let kernels = KernelShape {
            head_dim,
            v_dim,
            group: queries,
            capped,
            sloped: false,
            images: false,
            cells,
            page_len: 32,
            reproducible: false,
        };
        sources.push(("attention", kernels.source(227 << 10).text()));
    }
    // heads that several blocks share, for GPUs with little and with much shared memory
    for (head_dim, memory) in [(512, 99), (512, 227), (576, 227)] {
        for cells in [KvCell::Half, KvCell::Int8] {
            let kernels = KernelShape {
                head_dim,
                v_dim: 512,
                group: 8,
                capped: false,
                sloped: false,
                images: false,
                cells,
                page_len: 32,
                reproducible: false,
            };
            sources.push(("attention of wide heads", kernels.source(memory << 10).text()));
        }
    }
    sources.push(("experts", Source::Experts.with(&[])));
    // as gpt-oss, Qwen 3 and GLM with scales, and Maple
    let oai = ExpertSizes { width: 2048, count: 32, used: 4, ff: 2880, ..ExpertSizes::SMALL };
    let silu = ExpertSizes {
        width: 2048,
        count: 128,
        used: 8,
        ff: 768,
        gating: Gating::Softmax,
        activation: Activation::Silu,
        biased: false,
        shared: false,
    };
    let sigmoid = ExpertSizes { gating: Gating::Sigmoid, shared: true, ..silu };
    let clamped = ExpertSizes { activation: Activation::SwigluClamp(0.8), used: 4, ff: 512, ..silu };
    for (format, sizes) in [(&MXFP4, oai), (&Q4_K, silu), (&Q4_K, sigmoid), (&TQ2_0, clamped)] {
        sources.push(("one token, other formats", expert_step(format, sizes)));
    }
    sources.push(("sample", Source::Sample.with(&[])));
    sources.push(("bandwidth", Source::Bandwidth.with(&[])));
    let architectures = ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"];
    // slow to compile, and the same code as in the others: generations before sm_90 differ in
    // nothing that kernels use
    let again = |name: &str, architecture: &str| match name {
        "linear" | "attention of wide heads" | "phase launches"
            if ["sm_86", "sm_89"].contains(&architecture) =>
        {
            true
        }
        "linear of another format" | "linear of a large tile" => architecture != "sm_90a",
        "several tokens"
        | "few tokens"
        | "linear of tall tiles"
        | "one token, other formats"
        | "phase launches, other formats" => !["sm_80", "sm_90a"].contains(&architecture),
        _ => false,
    };
    let mut compiled = vec![];
    for architecture in architectures {
        let limits = limits(architecture, false);
        let linears =
            linears.iter().map(|(n, config, key)| (*n, linear_source(config, *key, &limits).text()));
        let all = sources.iter().cloned().chain(linears).filter(|(name, _)| !again(name, architecture));
        compiled.extend(all.map(|(name, source)| (name, source, architecture)));
    }
    // linears leave it to the optimizer to remove the instructions of other generations
    let (whole, fast): (Vec<_>, Vec<_>) = compiled
        .iter()
        .partition(|(name, _, generation)| *generation == "sm_90a" || name.starts_with("linear"));
    let compile_all = |fast: bool, compiled: &[&(&str, String, &str)]| {
        let next = AtomicUsize::new(0);
        let threads = thread::available_parallelism().map_or(1, |n| n.get());
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while let Some((name, source, generation)) =
                        compiled.get(next.fetch_add(1, Ordering::Relaxed))
                    {
                        if !fast {
                            compile(&nvrtc, name, source, generation);
                            continue;
                        }
                        let mut options = compile_options(generation, false);
                        options.push("--Ofast-compile=max".into()); // takes a fifth of the time
                        nvrtc.compile(name, source, &options).unwrap();
                    }
                });
            }
        });
    };
    compile_all(false, &whole);
    // not beside the others: the option would change their code as well
    compile_all(true, &fast);
}
