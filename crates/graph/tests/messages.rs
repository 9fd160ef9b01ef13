//! How a graph is printed, and the messages of the builder and of a step.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use tern_graph::{
    Activation, Attention, Backend, Bindings, Carried, ExpertGroups, Gating, Graph, HostTensor, KvCells,
    KvSize, NormKind, Output, PageTable, Reference, Roles, RopeStyle, RopeTable, Routing, Sample, Slice,
    Step, Val,
};

const ATTENTION: Attention = Attention::full(4, 2, 2, 0.5);

/// A graph with a value of 8 columns.
fn start() -> (Graph, Val) {
    let mut g = Graph::new();
    let table = g.matrix("table", 10, 8).unwrap();
    let x = g.embed(table, 1.0);
    (g, x)
}

#[test]
fn a_graph_is_one_line_a_node() {
    let (mut g, x) = start();
    let turn = g.rope_table(RopeTable::new(vec![1.0], 1.25));
    let norm = g.vector("norm", 8).unwrap();
    let norm_bias = g.vector("norm.bias", 8).unwrap();
    let x = g.norm(x, norm, 1e-6).unwrap();
    let x = g.norm_of_kind(x, norm, Some(norm_bias), 1e-5, NormKind::Layer).unwrap();
    let (wk, wv) = (g.matrix("k", 4, 8).unwrap(), g.matrix("v", 4, 8).unwrap());
    let (scale, bias) = (g.vector("k.scale", 1).unwrap(), g.vector("k.bias", 4).unwrap());
    let k = g.linear_with(x, wk, Some(scale), Some(bias)).unwrap();
    let v = g.linear(x, wv).unwrap();
    let q = g.rope(x, 2, RopeStyle::Interleaved, turn).unwrap();
    let k = g.rope(k, 2, RopeStyle::Halves, turn).unwrap();
    let a = g.attend(q, k, v, Attention { window: Some(3), softcap: Some(50.0), ..ATTENTION }).unwrap();
    let other = g.attend_to(q, 0, ATTENTION).unwrap();
    let a = g.add(a, other).unwrap();
    let x = g.add(x, a).unwrap();
    let x = g.plain_norm(x, 4, 1e-6).unwrap();
    let left = g.columns(x, 0, 4).unwrap();
    let right = g.columns(x, 4, 4).unwrap();
    let h = g.gated(left, right, Activation::GeluTanh).unwrap();
    let h = g.scale(h, 2.5);
    let h = g.outputs(h);
    g.softcap(h, 30.0);
    g.embed(wk, 2.0);
    let want = "\
rope 0: 1 pairs, 1.0000e0 .. 1.0000e0, x 1.2500
%0 [8] = embed table [10, 8]
%1 [8] = norm %0 norm [8] Rms eps 1e-6
%2 [8] = norm %1 norm [8] Layer eps 1e-5 + norm.bias [8]
%3 [4] = linear %2 k [4, 8] x k.scale [1] + k.bias [4]
%4 [4] = linear %2 v [4, 8]
%5 [8] = rope %2 head 2 Interleaved table 0
%6 [4] = rope %3 head 2 Halves table 0
%7 [8] = attend %5 %6 %4 layer 0 heads 4/2 x 2 scale 0.5000 window 3 softcap 50
%8 [8] = attend %5 to layer 0 heads 4/2 x 2 scale 0.5000
%9 [8] = add %7 %8
%10 [8] = add %2 %9
%11 [8] = norm %10 of 4 Rms eps 1e-6
%12 [4] = columns %11 0..4
%13 [4] = columns %11 4..8
%14 [4] = gated %12 %13 GeluTanh
%15 [4] = scale %14 x 2.5000
%16 [outputs, 4] = outputs %15
%17 [outputs, 4] = softcap %16 30
%18 [8] = embed k [4, 8] x 2.0000
";
    assert_eq!(g.to_string(), want);
    assert_eq!((g.vocab(), g.output_width()), (4, 8), "the shortest table bounds the ids");
    assert_eq!(g.kv[0].bytes_per_token(KvCells::F16), 16);
}

#[test]
fn the_same_name_is_the_same_weight() {
    let mut g = Graph::new();
    let a = g.matrix("w", 3, 4).unwrap();
    assert_eq!(g.matrix("w", 3, 4).unwrap(), a);
    let message = g.matrix("w", 4, 3).unwrap_err().to_string();
    assert_eq!(message, "w: declared as [3, 4] and as [4, 3]");
    assert_eq!(g.vector("w", 4).unwrap_err().to_string(), "w: declared as [3, 4] and as [1, 4]");
    let table = RopeTable::new(vec![1.0, 0.1], 1.0);
    assert_eq!((g.rope_table(table.clone()), g.rope_table(table)), (0, 0));
}

#[test]
fn norms_that_do_not_fit() {
    let (mut g, x) = start();
    let (norm, head) = (g.vector("norm", 3).unwrap(), g.vector("head", 4).unwrap());
    assert_eq!(g.norm(x, norm, 1e-6).unwrap_err().to_string(), "norm: a norm of 3 columns on a value of 8");
    let message = g.norm_of_kind(x, head, Some(norm), 1e-6, NormKind::Layer).unwrap_err().to_string();
    assert_eq!(message, "norm: want [4], declared as [1, 3]");
    let empty = g.vector("empty", 0).unwrap();
    assert_eq!(g.norm(x, empty, 1e-6).unwrap_err().to_string(), "empty: a norm of 0 columns on a value of 8");
    assert!(g.norm(x, head, 1e-6).is_ok(), "each head on its own");
    let plain = g.plain_norm(x, 3, 1e-6).unwrap_err().to_string();
    assert_eq!(plain, "norm: a norm of 3 columns on a value of 8");
}

#[test]
fn linears_that_do_not_fit() {
    let (mut g, x) = start();
    let narrow = g.matrix("narrow", 6, 7).unwrap();
    assert_eq!(g.linear(x, narrow).unwrap_err().to_string(), "narrow: a linear of 7 columns on a value of 8");
    let w = g.matrix("w", 6, 8).unwrap();
    let (two, eight) = (g.vector("two", 2).unwrap(), g.vector("eight", 8).unwrap());
    let scale = g.linear_with(x, w, Some(two), None).unwrap_err().to_string();
    assert_eq!(scale, "two: want [1], declared as [1, 2]");
    let bias = g.linear_with(x, w, None, Some(eight)).unwrap_err().to_string();
    assert_eq!(bias, "eight: want [6], declared as [1, 8]");
}

const ROUTING: Routing =
    Routing { used: 2, gating: Gating::Sigmoid, groups: None, renormalise: true, scale: 2.5 };

#[test]
fn experts_are_one_line_each() {
    let (mut g, x) = start();
    let bias = g.vector("bias", 8).unwrap();
    let groups = Some(ExpertGroups { count: 4, used: 2 });
    let route = g.route(x, Some(bias), Routing { groups, ..ROUTING }).unwrap();
    let up = g.experts("up", 8, 3, 8).unwrap();
    let (scale, bias) = (g.vector("up.scale", 8).unwrap(), g.matrix("up.bias", 8, 3).unwrap());
    let h = g.expert_linear_with(x, Some(route), up, Some(scale), Some(bias)).unwrap();
    let down = g.experts("down", 8, 8, 3).unwrap();
    let h = g.expert_linear(h, Some(route), down).unwrap();
    let h = g.mix(h, route).unwrap();
    let heads = g.experts("heads", 4, 5, 2).unwrap();
    g.expert_linear(h, None, heads).unwrap();
    let want = "\
%0 [8] = embed table [10, 8]
%1 [4] = route %0 2 Sigmoid by bias [8] from 2 of 4 groups renormalised x 2.5000
%2 [6] = expert_linear %0 %1 up [8, 3, 8] x up.scale [8] + up.bias [8, 3]
%3 [16] = expert_linear %2 %1 down [8, 8, 3]
%4 [8] = mix %3 %1
%5 [20] = expert_linear %4 heads [4, 5, 2]
";
    assert_eq!(g.to_string(), want);
}

#[test]
fn experts_that_do_not_fit() {
    let (mut g, x) = start();
    let mut message = |used, groups: Option<(usize, usize)>| {
        let groups = groups.map(|(count, used)| ExpertGroups { count, used });
        g.route(x, None, Routing { used, groups, ..ROUTING }).unwrap_err().to_string()
    };
    assert_eq!(message(9, None), "route: 9 of 8 experts per token");
    assert_eq!(message(0, None), "route: 0 of 8 experts per token");
    assert_eq!(message(2, Some((3, 1))), "route: 8 experts in 3 groups");
    assert_eq!(message(3, Some((4, 1))), "route: 3 of 8 experts from 1 of 4 groups");
    assert_eq!(message(2, Some((4, 5))), "route: 2 of 8 experts from 5 of 4 groups");
    let (four, bias) = (g.vector("four", 4).unwrap(), g.matrix("bias", 8, 2).unwrap());
    assert_eq!(
        g.route(x, Some(four), ROUTING).unwrap_err().to_string(),
        "four: want [8], declared as [1, 4]"
    );
    let route = g.route(x, None, ROUTING).unwrap();
    let (fewer, wide) = (g.experts("fewer", 4, 3, 8).unwrap(), g.experts("wide", 8, 3, 9).unwrap());
    let up = g.experts("up", 8, 3, 8).unwrap();
    let mut message = |x, route, weight, scale, bias| {
        g.expert_linear_with(x, route, weight, scale, bias).unwrap_err().to_string()
    };
    assert_eq!(message(x, Some(route), fewer, None, None), "fewer: 4 experts, routed are 8");
    assert_eq!(message(x, Some(route), wide, None, None), "wide: 2 linears of 9 columns on a value of 8");
    assert_eq!(message(x, None, up, None, None), "up: 8 linears of 8 columns on a value of 8");
    assert_eq!(message(x, Some(x), up, None, None), "want a route, got embed");
    assert_eq!(message(x, Some(route), up, Some(four), None), "four: want [8], declared as [1, 4]");
    assert_eq!(message(x, Some(route), up, None, Some(bias)), "bias: want [8, 3], declared as [8, 2]");
    let odd = g.matrix("odd", 3, 8).unwrap();
    let odd = g.linear(x, odd).unwrap();
    assert_eq!(g.mix(odd, route).unwrap_err().to_string(), "mix: 2 parts of a value of 3");
    assert_eq!(g.experts("none", 0, 3, 8).unwrap_err().to_string(), "none: 0 experts of 3 rows");
    let message = g.experts("up", 4, 6, 8).unwrap_err().to_string();
    assert_eq!(message, "up: declared as [8, 3, 8] and as [4, 6, 8]");
    let many = g.matrix("many", 40_000, 8).unwrap();
    let many = g.linear(x, many).unwrap();
    let message = g.route(many, None, ROUTING).unwrap_err().to_string();
    assert_eq!(message, "route: 40000 experts, at most 32768");
}

#[test]
fn parts_of_heads_are_one_line_each() {
    let (mut g, x) = start();
    let part = g.head_columns(x, 4, 1, 3).unwrap();
    g.join_heads(part, x, 2).unwrap();
    let text = g.to_string();
    assert!(
        text.ends_with("%1 [6] = head_columns %0 1..4 of each 4\n%2 [14] = join_heads %1 %0 heads 2\n"),
        "{text}"
    );
    let message = g.head_columns(x, 3, 0, 1).unwrap_err().to_string();
    assert_eq!(message, "columns 0..1 of heads of 3 in a value of 8");
    let message = g.head_columns(x, 4, 2, 3).unwrap_err().to_string();
    assert_eq!(message, "columns 2..5 of heads of 4 in a value of 8");
    let message = g.join_heads(part, x, 4).unwrap_err().to_string();
    assert_eq!(message, "join_heads: 4 heads in values of 6 and 8");
}

#[test]
fn ropes_that_do_not_fit() {
    let (mut g, x) = start();
    let table = g.rope_table(RopeTable::new(vec![1.0; 2], 1.0));
    let mut message = |head_dim| g.rope(x, head_dim, RopeStyle::Halves, table).unwrap_err().to_string();
    assert_eq!(message(3), "rope of 4 dimensions on heads of 3 in a value of 8");
    assert_eq!(message(2), "rope of 4 dimensions on heads of 2 in a value of 8");
    assert_eq!(message(0), "rope of 4 dimensions on heads of 0 in a value of 8");
}

#[test]
fn attentions_that_do_not_fit() {
    let (mut g, q) = start();
    let w = g.matrix("w", 4, 8).unwrap();
    let kv = g.linear(q, w).unwrap();
    let mut message = |q, k, v, args| g.attend(q, k, v, args).unwrap_err().to_string();
    assert_eq!(message(kv, kv, kv, ATTENTION), "attend: want q of 8 columns, got 4");
    assert_eq!(message(q, q, kv, ATTENTION), "attend: want k of 4 columns, got 8");
    assert_eq!(message(q, kv, q, ATTENTION), "attend: want v of 4 columns, got 8");
    let uneven = Attention { heads: 4, kv_heads: 3, head_dim: 2, v_dim: 2, ..ATTENTION };
    let six = g.matrix("six", 6, 8).unwrap();
    let kv6 = g.linear(q, six).unwrap();
    let message = g.attend(q, kv6, kv6, uneven).unwrap_err().to_string();
    assert_eq!(message, "attend: 4 heads are not a multiple of 3 kv heads");
    assert!(g.kv.is_empty(), "what was refused keeps no KV");
    assert_eq!(g.attend_to(q, 0, ATTENTION).unwrap_err().to_string(), "attend: KV layer 0 of 0");
    g.attend(q, kv, kv, ATTENTION).unwrap();
    let wide = Attention { heads: 2, kv_heads: 1, head_dim: 4, v_dim: 4, ..ATTENTION };
    assert_eq!(
        g.attend_to(q, 0, wide).unwrap_err().to_string(),
        "attend: want 1 kv heads of 4 and 4 columns, KV layer 0 has 2 kv heads of 2 and 2 columns"
    );
    assert_eq!(g.attend_to(kv, 0, ATTENTION).unwrap_err().to_string(), "attend: want q of 8 columns, got 4");
}

#[test]
fn pairs_that_do_not_fit() {
    let (mut g, x) = start();
    let half = g.columns(x, 2, 4).unwrap();
    assert_eq!(g.add(x, half).unwrap_err().to_string(), "add: a value of 8 columns and one of 4");
    let message = g.gated(half, x, Activation::Silu).unwrap_err().to_string();
    assert_eq!(message, "gated: a value of 4 columns and one of 8");
    assert_eq!(g.columns(x, 6, 3).unwrap_err().to_string(), "columns 6..9 of a value of 8");
    let outputs = g.outputs(x);
    assert!(g.add(x, outputs).is_err(), "rows of all tokens and rows of the outputs");
}

/// A step of two sequences that fits 10 tokens, 4 pages of 16.
fn step() -> Step {
    Step {
        tokens: vec![1, 2, 3, 9],
        slices: vec![Slice::new(3, 14, [3, 0]), Slice::new(1, 0, [1])],
        outputs: vec![
            Output { row: 2, sample: None, logits: true },
            Output { row: 3, sample: None, logits: false },
        ],
        ..Step::default()
    }
}

#[test]
fn steps_that_do_not_fit() {
    let kv = KvSize { page_len: 16, pages: 4, window_pages: None };
    assert_eq!(step().check(10, kv, None), Ok(()));
    assert_eq!(step().positions().collect::<Vec<_>>(), [14, 15, 16, 0]);
    let message = |edit: fn(&mut Step)| {
        let mut step = step();
        edit(&mut step);
        step.check(10, kv, None).unwrap_err().to_string()
    };
    assert_eq!(message(|s| *s = Step::default()), "a step has no tokens");
    assert_eq!(message(|s| s.tokens[2] = 10), "token id 10 is outside the vocabulary of 10");
    assert_eq!(message(|s| s.slices[0].len = 2), "slices cover 3 of 4 tokens");
    assert_eq!(message(|s| s.slices[1].len = 2), "slices cover 5 of 4 tokens");
    assert_eq!(
        message(|s| s.slices[0].pages.make_mut().truncate(1)),
        "1 pages of 16 do not hold position 16"
    );
    assert_eq!(message(|s| s.slices[1].position = 16), "1 pages of 16 do not hold position 16");
    assert_eq!(message(|s| s.slices[1].pages.make_mut()[0] = 4), "page 4 is outside the 4 reserved");
    assert_eq!(message(|s| s.outputs[1].row = 4), "output row 4 of 4 tokens");
    assert_eq!(message(|s| s.carried = vec![Carried { token: 4, output: 0 }]), "carried token 4 of 4 tokens");

    let kv = KvSize { window_pages: Some(2), ..kv };
    let message = |tables: [&[u32]; 2]| {
        let mut step = step();
        step.slices.iter_mut().zip(tables).for_each(|(s, pages)| s.window_pages = pages.to_vec().into());
        step.check(10, kv, None).map_err(|e| e.to_string())
    };
    assert_eq!(message([&[0, 1], &[0]]), Ok(()));
    assert_eq!(message([&[0, 1], &[]]), Err("0 window pages of 16 do not hold position 0".into()));
    assert_eq!(message([&[0, 2], &[0]]), Err("page 2 is outside the 2 reserved for windows".into()));
}

/// Logits that are the embedding of a token itself: the best token after any is the one
/// with the largest column.
#[test]
fn a_carried_token_is_the_one_that_the_step_before_sampled() {
    let mut graph = Graph::new();
    let table = graph.matrix("table", 4, 4).unwrap();
    let x = graph.embed(table, 1.0);
    graph.outputs(x);
    let mut rows = [0.0; 16];
    [1, 2, 3, 0].into_iter().enumerate().for_each(|(id, next)| rows[id * 4 + next] = 1.0);
    rows[12..].fill(f32::NAN); // after 3 no token can be sampled
    let mut backend = Reference::new();
    let weights = [backend.store(&HostTensor::from_f32("table", 4, 4, &rows), graph.roles()[0]).unwrap()];
    let bindings = Bindings { weights: &weights, kv: None, state: None, max_tokens: 4, max_outputs: 4 };
    let programs = [(); 2].map(|()| backend.compile(&graph, &bindings).unwrap());
    // one slice of these tokens, each of which samples the next
    let step = |tokens: &[u32], carried: &[(usize, usize)]| Step {
        tokens: tokens.to_vec(),
        slices: vec![Slice { len: tokens.len(), ..Slice::default() }],
        outputs: (0..tokens.len())
            .map(|row| Output { row, sample: Some(Sample::default()), logits: false })
            .collect(),
        carried: carried.iter().map(|&(token, output)| Carried { token, output }).collect(),
        ..Step::default()
    };
    let mut run = |program: usize, step: Step| {
        let ticket = backend.submit(programs[program], step).map_err(|e| e.to_string())?;
        let rows = backend.collect(ticket).unwrap().rows;
        Ok::<_, String>(rows.into_iter().map(|row| row.sampled.map(|s| s.id)).collect::<Vec<_>>())
    };
    let none =
        |outputs: usize, of: usize| Err(format!("output {outputs} of the step before, which has {of}"));
    assert_eq!(run(0, step(&[0], &[(0, 0)])), none(0, 0));
    assert_eq!(run(0, step(&[0, 1], &[])), Ok(vec![Some(1), Some(2)]));
    assert_eq!(
        run(1, step(&[0], &[(0, 0)])),
        none(0, 0),
        "the step of another program is not the one before"
    );
    assert_eq!(run(0, step(&[0, 0, 0], &[(0, 1), (2, 0)])), Ok(vec![Some(3), Some(1), Some(2)]));
    assert_eq!(run(0, step(&[0], &[(0, 3)])), none(3, 3));
    assert_eq!(run(0, step(&[0], &[(0, 0)])), none(0, 0), "nothing is carried over from a refused step");
    let silent = Step { outputs: vec![Output { row: 0, sample: None, logits: true }], ..step(&[0], &[]) };
    assert_eq!(run(0, silent), Ok(vec![None]));
    let message = "output 0 of the step before samples no token";
    assert_eq!(run(0, step(&[0], &[(0, 0)])), Err(message.into()));
    assert_eq!(run(0, step(&[3], &[])), Ok(vec![None]));
    assert_eq!(
        run(0, step(&[1], &[(0, 0)])),
        Ok(vec![Some(2)]),
        "the placeholder, if no token could be sampled"
    );
}

#[test]
fn a_weight_has_the_roles_of_all_ops_that_read_it() {
    let mut graph = Graph::new();
    let tied = graph.matrix("tied", 8, 4).unwrap();
    let (norm, bias) = (graph.vector("norm", 4).unwrap(), graph.vector("bias", 8).unwrap());
    let unused = graph.matrix("unused", 8, 4).unwrap();
    let x = graph.embed(tied, 1.0);
    let x = graph.norm(x, norm, 1e-5).unwrap();
    graph.linear_with(x, tied, None, Some(bias)).unwrap();
    let (none, vector) = (Roles::default(), Roles { vector: true, ..Roles::default() });
    let want = [Roles { table: true, matrix: true, ..none }, vector, vector, none];
    assert_eq!([tied, norm, bias, unused].map(|id| graph.roles()[id.index()]), want);
}

#[test]
fn weights_that_a_choice_of_experts_depends_on_are_known() {
    let mut graph = Graph::new();
    let tied = graph.matrix("tied", 8, 4).unwrap();
    let norm = graph.vector("norm", 4).unwrap();
    let [before, router, behind] =
        ["before", "router", "behind"].map(|name| graph.matrix(name, 4, 4).unwrap());
    let experts = graph.experts("experts", 4, 4, 4).unwrap();
    let x = graph.embed(tied, 1.0);
    let x = graph.linear(x, before).unwrap();
    let x = graph.norm(x, norm, 1e-5).unwrap();
    let logits = graph.linear(x, router).unwrap();
    let routing = Routing { used: 2, gating: Gating::Softmax, groups: None, renormalise: false, scale: 1.0 };
    let route = graph.route(logits, None, routing).unwrap();
    let parts = graph.expert_linear(x, Some(route), experts).unwrap();
    let x = graph.mix(parts, route).unwrap();
    let x = graph.linear(x, behind).unwrap();
    graph.linear(x, tied).unwrap();
    let all = [tied, norm, before, router, behind, experts];
    let chooses = all.map(|id| graph.roles()[id.index()].chooses);
    assert_eq!(chooses, [false, false, true, true, false, false]);
}

/// Without attention there are no pages to check.
#[test]
fn a_step_without_kv_needs_no_pages() {
    let mut step = step();
    step.slices.iter_mut().for_each(|s| s.pages = PageTable::default());
    assert_eq!(step.check(10, KvSize::default(), None), Ok(()));
}

#[test]
fn answers_have_what_was_requested() {
    let rows = [vec![0.0, 1.0], vec![1.0, 0.0]];
    let mut step = step();
    step.outputs[1].sample = Some(tern_graph::Sample::default());
    let answer = step.answer(rows.iter().map(Vec::as_slice));
    assert_eq!(answer.rows[0].logits.as_deref(), Some(&[0.0, 1.0][..]));
    assert_eq!((answer.rows[0].sampled.is_none(), answer.rows[1].logits.is_none()), (true, true));
    assert_eq!(answer.rows[1].sampled.as_ref().map(|s| s.id), Some(0));
}
