//! Phases between two barriers: chains of ops whose parts are independent of each other.
//!
//! A thread runs all ops of a chain on one part before it takes the next: gate, up and the activation
//! on some columns; norm, rotation and storing on some heads. Intermediate values stay in its cache,
//! and no barrier is needed.

use tern_graph::{Graph, Node, Op, Plan, Rotation, Val, Work as Made};

use crate::activations::quantized_rows::Rounding;

/// One op's work in a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Sines and cosines of the step's positions for one rotary table.
    Rotations(usize),
    /// Stores an attention's keys and values in their pages.
    StoreKv,
    /// The node's op.
    Compute,
    /// Quantizes the node's value, if its op could not.
    Quantize,
    /// Quantizes the node's value in tiles of tokens.
    QuantizeTiles,
}

/// Some work on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) work: Work,
    pub(crate) node: usize,
    /// The op also quantizes its value.
    pub(crate) with_ints: bool,
}

/// How a chain is split into parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// By its only op.
    Alone,
    /// Some columns of all rows: a linear, and elementwise ops on its columns.
    Columns,
    /// Some columns of all parts of an expert: a linear of experts, and elementwise ops on its columns.
    Experts { route: Option<usize>, count: usize },
    /// Whole rows.
    Rows,
    /// Runs of this many columns of a row.
    Runs(usize),
}

/// Ops that a thread runs one after the other on each part it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chain {
    pub(crate) links: Vec<Link>,
    pub(crate) cut: Cut,
}

/// What some work reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Thing {
    Value(usize),
    /// The pages of a layer.
    Kv(usize),
    Rotations(usize),
}

/// The chains of each phase; there is one barrier after each phase and no other.
pub(crate) fn phases(graph: &Graph, roundings: &[Option<Rounding>]) -> Vec<Vec<Chain>> {
    let link = |work: Work, node: usize| Link { work, node, with_ints: false };
    let tables = 0..graph.ropes.len();
    let mut open: Vec<Chain> =
        tables.map(|t| Chain { links: vec![link(Work::Rotations(t), 0)], cut: Cut::Alone }).collect();
    let mut phases = vec![];
    for (i, node) in graph.nodes.iter().enumerate() {
        let stores = matches!(node.op, Op::Attend { kv: Some(_), .. }).then_some(Work::StoreKv);
        for work in stores.into_iter().chain([Work::Compute]) {
            let link = link(work, i);
            if overwrites(graph, link, &open) {
                phases.push(std::mem::take(&mut open));
            }
            let needs = needs(graph, link);
            let fresh = |chain: &Chain| chain.links.iter().any(|l| needs.contains(&makes(graph, *l)));
            // an op that quantizes its value must finish whole spans
            let span = roundings[i].filter(|_| work == Work::Compute).map(|r| Cut::Runs(r.span));
            let own = smallest(graph, link);
            let own = span.and_then(|span| both(own, span)).unwrap_or(own);
            let mut cuts = open.iter().filter(|c| fresh(c)).map(|c| c.cut);
            let cut = cuts
                .next()
                .map(|first| cuts.try_fold(first, both).and_then(|cut| follow(cut, graph, link, own)));
            let cut = match cut {
                None => own,
                Some(Some(cut)) => cut,
                Some(None) => {
                    phases.push(std::mem::take(&mut open));
                    own
                }
            };
            let (joined, others): (Vec<_>, Vec<_>) = open.into_iter().partition(fresh);
            open = others;
            let mut links: Vec<Link> = joined.into_iter().flat_map(|c| c.links).collect();
            links.push(link);
            // runs of columns line up only if all values have the same width
            let alike = links.iter().all(|l| width(graph, *l) == width(graph, link));
            let cut = if matches!(cut, Cut::Runs(_)) && !alike { Cut::Rows } else { cut };
            open.push(Chain { links, cut });
        }
    }
    phases.push(open);
    phases
}

/// Whether the work stores keys and values in a layer that an open chain reads: encoder layers share one.
fn overwrites(graph: &Graph, link: Link, open: &[Chain]) -> bool {
    let stored = makes(graph, link);
    let reads = |l: &Link| l.work == Work::Compute && needs(graph, *l).contains(&stored);
    link.work == Work::StoreKv && open.iter().flat_map(|chain| &chain.links).any(reads)
}

/// Memory for the values of phases: all that a phase reads and writes is live at the same time.
pub(crate) fn plan(graph: &Graph, phases: &[Vec<Chain>]) -> Plan {
    let made = |phase: &Vec<Chain>| {
        let links = || phase.iter().flat_map(|c| &c.links);
        let values = |things: &mut dyn Iterator<Item = Thing>| -> Vec<Val> {
            things
                .filter_map(|t| if let Thing::Value(node) = t { Some(graph.val(node)) } else { None })
                .collect()
        };
        Made {
            reads: values(&mut links().flat_map(|l| needs(graph, *l))),
            writes: values(&mut links().map(|l| makes(graph, *l))),
        }
    };
    Plan::of(graph, &phases.iter().map(made).collect::<Vec<_>>())
}

fn makes(graph: &Graph, link: Link) -> Thing {
    match (link.work, &graph.nodes[link.node].op) {
        (Work::Rotations(table), _) => Thing::Rotations(table),
        (Work::StoreKv, Op::Attend { layer, .. }) => Thing::Kv(*layer),
        _ => Thing::Value(link.node),
    }
}

fn needs(graph: &Graph, link: Link) -> Vec<Thing> {
    let op = &graph.nodes[link.node].op;
    let value = |v: &Val| Thing::Value(v.index());
    match (link.work, op) {
        (Work::Rotations(_), _) => vec![],
        (Work::StoreKv, Op::Attend { kv: Some(kv), .. }) => [kv.k, kv.v].map(|v| value(&v)).to_vec(),
        (_, Op::Attend { q, layer, .. }) => vec![value(q), Thing::Kv(*layer)],
        (_, Op::Rope { x, table, .. }) => vec![value(x), Thing::Rotations(*table)],
        _ => op.inputs().iter().map(value).collect(),
    }
}

/// The cut of a chain with one more link, which may read only the same part of its inputs as it writes.
fn follow(cut: Cut, graph: &Graph, link: Link, own: Cut) -> Option<Cut> {
    match cut {
        // elementwise ops
        Cut::Columns | Cut::Experts { .. } if smallest(graph, link) == Cut::Runs(1) => Some(cut),
        _ if matches!(graph.nodes[link.node].op, Op::Outputs { .. } | Op::Means { .. }) => None,
        _ => both(cut, own).filter(|cut| !matches!(cut, Cut::Columns | Cut::Experts { .. })),
    }
}

/// The smallest parts that some work can be split into.
fn smallest(graph: &Graph, link: Link) -> Cut {
    match (link.work, &graph.nodes[link.node].op) {
        (Work::StoreKv, Op::Attend { args, .. }) => Cut::Runs(args.head_dim),
        (_, Op::Linear { .. }) => Cut::Columns,
        (_, Op::Attend { .. } | Op::Conv { .. } | Op::Delta { .. } | Op::Scan { .. }) => Cut::Alone,
        (_, Op::Rotate { rotation, .. }) => match &graph.rotations[*rotation] {
            Rotation { heads: Some(_), .. } => Cut::Rows,
            Rotation { block, .. } => Cut::Runs(*block),
        },
        (_, Op::ExpertLinear { route, weight, .. }) => {
            Cut::Experts { route: route.map(Val::index), count: graph.weight(*weight).experts }
        }
        (
            _,
            Op::Embed { .. }
            | Op::GateRows { .. }
            | Op::AddRow { .. }
            | Op::Columns { .. }
            | Op::Outputs { .. }
            | Op::Means { .. }
            | Op::HeadColumns { .. }
            | Op::JoinHeads { .. }
            | Op::Route { .. }
            | Op::Mix { .. }
            | Op::Input { .. }
            | Op::ImageRows { .. }
            | Op::ScaleColumns { .. }
            | Op::HostExperts { .. },
        ) => Cut::Rows,
        (_, Op::Norm { len, .. }) => Cut::Runs(*len),
        (_, Op::Rope { head_dim, .. }) => Cut::Runs(*head_dim),
        (
            _,
            Op::Gated { .. }
            | Op::Apply { .. }
            | Op::Add { .. }
            | Op::Scale { .. }
            | Op::SoftCap { .. }
            | Op::ScaleAdapters { .. },
        ) => Cut::Runs(1),
    }
}

/// The smallest cut whose parts are whole parts of both cuts, if there is one.
fn both(a: Cut, b: Cut) -> Option<Cut> {
    match (a, b) {
        (Cut::Columns, Cut::Columns) => Some(Cut::Columns),
        (Cut::Experts { .. }, Cut::Experts { .. }) if a == b => Some(a),
        (Cut::Runs(a), Cut::Runs(b)) if a.max(b).is_multiple_of(a.min(b)) => Some(Cut::Runs(a.max(b))),
        (Cut::Rows | Cut::Runs(_), Cut::Rows | Cut::Runs(_)) => Some(Cut::Rows),
        _ => None,
    }
}

/// Columns per row that some work processes.
pub(crate) fn width(graph: &Graph, link: Link) -> usize {
    match (link.work, &graph.nodes[link.node]) {
        (Work::StoreKv, Node { op: Op::Attend { kv: Some(kv), .. }, .. }) => graph.width(kv.k),
        (_, node) => node.value.width,
    }
}

#[cfg(test)]
mod tests {
    use tern_graph::{Activation, Attention, RopeStyle, RopeTable};

    use super::*;

    /// A typical layer, with an embedding before it and the output matrix after it.
    fn layer() -> Result<Graph, tern_graph::GraphError> {
        let mut g = Graph::new();
        let args = Attention::full(4, 2, 16, 0.25);
        let table = g.rope_table(RopeTable::new(vec![1.0; 8], 1.0));
        let embed = g.matrix("embed", 100, 64)?;
        let norms = [g.vector("norm", 64)?, g.vector("head norm", 16)?];
        let [wq, wk, wv] = [("q", 64), ("k", 32), ("v", 32)].map(|(name, rows)| g.matrix(name, rows, 64));
        let (wo, gate, up) = (g.matrix("o", 64, 64)?, g.matrix("gate", 96, 64)?, g.matrix("up", 96, 64)?);
        let down = g.matrix("down", 64, 96)?;
        let x = g.embed(embed, 1.0);
        let n = g.norm(x, norms[0], 1e-6)?;
        let (q, k, v) = (g.linear(n, wq?)?, g.linear(n, wk?)?, g.linear(n, wv?)?);
        let (q, k) = (g.norm(q, norms[1], 1e-6)?, g.norm(k, norms[1], 1e-6)?);
        let (q, k) = (g.rope(q, 16, RopeStyle::Halves, table)?, g.rope(k, 16, RopeStyle::Halves, table)?);
        let a = g.attend(q, k, v, args)?;
        let o = g.linear(a, wo)?;
        let x = g.add(x, o)?;
        let n = g.norm(x, norms[0], 1e-6)?;
        let (a, b) = (g.linear(n, gate)?, g.linear(n, up)?);
        let m = g.gated(a, b, Activation::Silu)?;
        let m = g.linear(m, down)?;
        let x = g.add(x, m)?;
        let x = g.outputs(x);
        let x = g.norm(x, norms[0], 1e-6)?;
        g.linear(x, embed)?;
        Ok(g)
    }

    #[test]
    fn a_layer_is_eight_phases() {
        let graph = layer().unwrap();
        let text = |l: &Link| match l.work {
            Work::Compute => graph.nodes[l.node].op.name().to_string(),
            work => format!("{work:?}"),
        };
        let chain = |c: &Chain| c.links.iter().map(text).collect::<Vec<_>>().join(" ");
        let phases = phases(&graph, &vec![None; graph.nodes.len()]);
        let texts: Vec<_> =
            phases.iter().map(|p| p.iter().map(chain).collect::<Vec<_>>().join(", ")).collect();
        let want = [
            "Rotations(0), embed norm",
            "linear, linear, linear",
            "norm rope, norm rope StoreKv",
            "attend",
            "linear add",
            "norm",
            "linear linear gated",
            "linear add",
            "outputs norm",
            "linear",
        ];
        assert_eq!(texts, want);
        assert_eq!(phases[2][1].cut, Cut::Runs(16));
        let plan = plan(&graph, &phases);
        let slots = |c: &Chain| c.links.iter().map(|l| plan.slot[l.node]).collect::<Vec<_>>();
        let norm = plan.slot[phases[5][0].links[0].node];
        assert!(!slots(&phases[6][0]).contains(&norm), "other threads still read the norm");
        let later = slots(&phases[7][0]);
        let gate = plan.slot[phases[6][0].links[0].node];
        assert!(gate == later[0] || gate == later[1], "the gate is not read any more: {later:?}");
    }

    #[test]
    fn parts_that_do_not_fit_are_whole_rows() {
        assert_eq!(both(Cut::Runs(64), Cut::Runs(16)), Some(Cut::Runs(64)));
        assert_eq!(both(Cut::Runs(48), Cut::Runs(32)), Some(Cut::Rows));
        assert_eq!(both(Cut::Columns, Cut::Runs(1)), None);
    }
}
