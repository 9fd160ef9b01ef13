//! Fuses the nodes of a graph to phases (`fused.rs`).
//!
//! Patterns (`patterns.rs`) make several nodes one phase; a node that fits no pattern is a phase by itself.

use tern_graph::{BackendError, Function, Graph, Op, TableRow, Val, WeightId};

use super::fused::*;
use super::host_phases::receive_late;
use crate::shared::{ElementKind, TableRows};
use crate::weights::Layout;

/// The phases of a graph. `layout` gives a weight's layout on the device, `None` for floats.
pub(crate) fn fuse(
    graph: &Graph,
    layout: impl Fn(WeightId) -> Option<Layout>,
) -> Result<Vec<Fused>, BackendError> {
    Fuser { graph, layout: &layout, readers: readers(graph), absorbed: vec![false; graph.nodes.len()] }.run()
}

fn readers(graph: &Graph) -> Vec<Vec<Val>> {
    let mut readers = vec![vec![]; graph.nodes.len()];
    for (i, node) in (0..).zip(&graph.nodes) {
        node.op.inputs().iter().for_each(|v| readers[v.index()].push(graph.val(i)));
    }
    readers
}

pub(super) struct Fuser<'a> {
    pub(super) graph: &'a Graph,
    pub(super) layout: &'a dyn Fn(WeightId) -> Option<Layout>,
    /// The nodes that read each node.
    pub(super) readers: Vec<Vec<Val>>,
    /// Nodes that are part of another node's phase.
    pub(super) absorbed: Vec<bool>,
}

impl Fuser<'_> {
    fn run(mut self) -> Result<Vec<Fused>, BackendError> {
        let all: Vec<Val> = (0..self.graph.nodes.len()).map(|i| self.graph.val(i)).collect();
        // which nodes a later node absorbs must be known before the nodes are walked
        let absorbing: Vec<Option<Fused>> = all.iter().map(|&v| self.absorbing(v)).collect();
        let norms: Vec<Val> = all.iter().copied().filter(|&v| self.is_prologue(v)).collect();
        for v in norms {
            self.absorbed[v.index()] = true;
            if let Op::Norm { x, .. } = self.graph.nodes[v.index()].op
                && self.is_gather(x)
            {
                self.absorbed[x.index()] = true;
            }
        }
        let mut phases = vec![];
        for (v, absorbing) in all.into_iter().zip(absorbing) {
            match absorbing {
                Some(phase) => phases.push(phase),
                None if self.absorbed[v.index()] => {}
                None => phases.extend(self.alone(v)?),
            }
        }
        let phases = phases.into_iter().map(|phase| self.with_prologue(phase)).collect();
        Ok(receive_late(self.graph, phases))
    }

    /// The phase of a node that no other absorbs; `None` for a view.
    fn alone(&mut self, out: Val) -> Result<Option<Fused>, BackendError> {
        let elements = |a, b, kind, by| Fused::Elements { a, b, kind, by, out };
        Ok(Some(match *self.op(out) {
            Op::Embed { table, scale } => {
                Fused::Embed { table, rows: TableRows::Token, scale, add: None, out }
            }
            Op::AddRow { x, table, row } => {
                let rows = match row {
                    TableRow::Position => TableRows::Position,
                    TableRow::First => TableRows::First,
                    TableRow::Type => TableRows::Type,
                };
                Fused::Embed { table, rows, scale: 1.0, add: Some(x), out }
            }
            Op::Apply { x, function } => match function {
                Function::Gelu => elements(x, None, ElementKind::ApplyGelu, 0.0),
                Function::GeluTanh => elements(x, None, ElementKind::ApplyGeluTanh, 0.0),
                Function::Tanh => elements(x, None, ElementKind::SoftCap, 1.0),
                Function::GeluQuick => elements(x, None, ElementKind::ApplyGeluQuick, 0.0),
                Function::Clamp(low, high) => Fused::Clamp { x, low, high, out },
            },
            Op::Norm { x, len, weight, bias, eps, kind } => {
                Fused::Norm { x, norm: Norm { len, weight, bias, eps, kind }, out }
            }
            Op::Linear { x, weight, scale, bias } => {
                self.linears(x, Matrix::new(self.graph, weight, scale, bias, out))
            }
            Op::Rope { x, head_dim, style, table } => {
                Fused::Rope { x, head_dim, rope: Rope { table, style }, out }
            }
            Op::Gated { gate, up, act } => {
                let (kind, limit) = activation(act);
                elements(gate, Some(up), kind, limit)
            }
            Op::Route { logits: x, bias, args } => {
                Fused::Route(Route { x, norm: None, router: None, factor: 1.0, bias, args, out })
            }
            Op::ExpertLinear { x, route, weight, scale, bias } => {
                let (matrix, matrices) =
                    (Matrix::new(self.graph, weight, scale, bias, out), Matrices::of(route));
                match (self.layout)(weight) {
                    Some(_) => Fused::Linear(Linear { matrices, ..Linear::of(x, vec![matrix]) }),
                    None => Fused::FloatLinear(FloatLinear { x, norm: None, matrix, matrices }),
                }
            }
            Op::Mix { x, route } => Fused::Mix { x, route, add: None, out },
            Op::HeadColumns { x: a, every, start, len } => {
                Fused::JoinHeads { a, every, start, len, b: None, heads: self.graph.width(out) / len, out }
            }
            Op::JoinHeads { a, b, heads } => {
                let every = self.graph.width(a) / heads;
                Fused::JoinHeads { a, every, start: 0, len: every, b: Some(b), heads, out }
            }
            Op::Add { a, b } => elements(a, Some(b), ElementKind::Add, 0.0),
            Op::Scale { x, by } => elements(x, None, ElementKind::Scale, by),
            Op::SoftCap { x, cap } => elements(x, None, ElementKind::SoftCap, cap),
            Op::ScaleAdapters { x, rank } => elements(x, None, ElementKind::ScaleAdapters, rank as f32),
            // readers use the columns in place; a result is copied
            Op::Columns { .. } if !self.readers[out.index()].is_empty() => return Ok(None),
            Op::Columns { .. } => elements(out, None, ElementKind::Scale, 1.0),
            Op::Outputs { x } => Fused::Outputs { x, mean: false, out },
            Op::Means { x } => Fused::Outputs { x, mean: true, out },
            Op::ScaleColumns { x, by } => Fused::ScaleColumns { x, by, out },
            Op::ImageRows { x, start, adds } => Fused::ImageRows { x, start, adds, out },
            Op::Input { index } => Fused::Host(HostPhase::Write { index, out }),
            Op::HostExperts { x, logits, piece } => Fused::Host(HostPhase::Send { x, logits, piece, out }),
            Op::Conv { x, weight, bias, layer, silu } => {
                Fused::Conv(Conv { x, weight, bias, layer, silu, out })
            }
            Op::Delta { qkv: x, decay: gate, beta, weights, layer, args } => {
                let rule = RecurrentRule::Delta { beta, weights, args };
                Fused::Recurrent(Recurrent { x, gate, rule, layer, out })
            }
            Op::Scan { xbc: x, dt: gate, weights, layer, args } => Fused::Recurrent(Recurrent {
                x,
                gate,
                rule: RecurrentRule::Scan { weights, args },
                layer,
                out,
            }),
            Op::GateRows { x, gate } => elements(x, Some(gate), ElementKind::GateRows, 0.0),
            Op::Rotate { x, rotation, inverse } => self.rotate(x, rotation, inverse, out),
            Op::Attend { layer, .. } => {
                return Err(BackendError::Other(format!("attention of layer {layer} was not lowered")));
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use tern_quant::{Q1_0, Q2_0, Q8_0};

    use super::super::test_graphs::decoder;
    use super::*;

    #[test]
    fn a_layer_is_five_phases() {
        let g = decoder();
        let phases = fuse(&g, |_| Layout::of(&Q1_0)).unwrap();
        let names: Vec<String> = phases
            .iter()
            .map(|p| match p {
                Fused::Linear(l) => format!(
                    "linear x {}{}{}{}{}",
                    l.parts.len(),
                    if l.norm.is_some() { ", normed" } else { "" },
                    if l.gather { ", gathered" } else { "" },
                    if l.gated.is_some() { ", gated" } else { "" },
                    if l.add.is_some() { ", added" } else { "" }
                ),
                Fused::Attend(Attend { q, stored: Some(stored), rope, .. }) => {
                    format!("attend {} {} {}", q.norm.is_some(), stored.k.norm.is_some(), rope.is_some())
                }
                Fused::Embed { .. } => "embed".into(),
                other => format!("{other:?}"),
            })
            .collect();
        let want = [
            "embed",
            "linear x 3, normed",
            "attend true true true",
            "linear x 1, added",
            "linear x 2, normed, gated",
            "linear x 1, added",
            "linear x 1, normed, gathered",
        ];
        assert_eq!(names, want);
    }

    #[test]
    fn matrices_of_bits_of_other_codes_and_of_floats_are_not_fused() {
        let g = decoder();
        let mixed = |id: WeightId| Layout::of(if g.weight(id).name == "v" { &Q8_0 } else { &Q1_0 });
        let parts = |p: &Fused| if let Fused::Linear(l) = p { l.parts.len() } else { 0 };
        assert_eq!(fuse(&g, mixed).unwrap().iter().map(parts).collect::<Vec<_>>()[1..3], [2, 1]);
        let bits = |id: WeightId| Layout::of(if g.weight(id).name == "v" { &Q2_0 } else { &Q1_0 });
        assert_eq!(fuse(&g, bits).unwrap().iter().map(parts).collect::<Vec<_>>()[1..3], [2, 1]);
        let floats = fuse(&g, |_| None).unwrap();
        assert!(!floats.iter().any(|p| matches!(p, Fused::Linear(_))));
        assert_eq!(floats.iter().filter(|p| matches!(p, Fused::Norm { .. })).count(), 3);
    }

    #[test]
    fn no_phase_writes_over_what_it_reads() {
        let g = decoder();
        let work: Vec<tern_graph::Work> =
            fuse(&g, |_| Layout::of(&Q1_0)).unwrap().iter().map(|p| work(&g, p)).collect();
        let plan = tern_graph::Plan::of(&g, &work);
        for w in &work {
            let slots = |vals: &[Val]| vals.iter().map(|v| plan.slot[v.index()]).collect::<Vec<_>>();
            let (reads, writes) = (slots(&w.reads), slots(&w.writes));
            assert!(reads.iter().all(|s| *s != usize::MAX && !writes.contains(s)), "{w:?}");
        }
    }
}
