//! Values that are alive at the same time never share memory, in any graph.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use proptest::prelude::*;
use tern_graph::{Activation, Attention, Graph, Plan, RopeStyle, RopeTable, Val};

/// One op to append: which, on which of the values so far, and how wide a linear is.
type Choice = (u8, usize, usize, usize);

/// A graph out of choices; every choice finds operands that fit.
fn graph(choices: &[Choice]) -> Graph {
    let mut g = Graph::new();
    let table = g.matrix("table", 9, 8).unwrap();
    let ropes = g.rope_table(RopeTable::new(vec![1.0], 1.0));
    let mut values = vec![g.embed(table, 1.0)];
    for (i, &(op, a, b, width)) in choices.iter().enumerate() {
        let x = values[a % values.len()];
        let like: Vec<Val> = values.iter().copied().filter(|v| g.value(*v) == g.value(x)).collect();
        let (y, z) = (like[b % like.len()], like[width % like.len()]);
        let tokens = !g.value(x).outputs_only;
        let v = match op {
            0 => g.embed(table, 1.0),
            1 => g.norm_with(i, x),
            2 if tokens => {
                let head = g.width(x);
                g.rope(x, head, RopeStyle::Halves, ropes).unwrap()
            }
            3 if tokens => {
                let dim = g.width(x);
                let args = Attention::full(1, 1, dim, 1.0);
                g.attend(x, y, z, args).unwrap()
            }
            4 => g.gated(x, y, Activation::Silu).unwrap(),
            5 => g.add(x, y).unwrap(),
            6 => g.scale(x, 2.0),
            7 => g.softcap(x, 30.0),
            8 => {
                let len = g.width(x).div_ceil(2).max(2);
                g.columns(x, 0, len).unwrap()
            }
            9 if tokens => g.outputs(x),
            _ => {
                let weight = g.matrix(format!("w{i}"), 2 * width, g.width(x)).unwrap();
                g.linear(x, weight).unwrap()
            }
        };
        values.push(v);
    }
    g
}

/// Separate norms.
trait NormWith {
    fn norm_with(&mut self, i: usize, x: Val) -> Val;
}

impl NormWith for Graph {
    fn norm_with(&mut self, i: usize, x: Val) -> Val {
        let weight = self.vector(format!("n{i}"), self.width(x)).unwrap();
        self.norm(x, weight, 1e-6).unwrap()
    }
}

/// The last node that reads each value; the result is read after all of them.
fn last_reads(g: &Graph) -> Vec<usize> {
    let mut last: Vec<usize> = (0..g.nodes.len()).collect();
    for (i, node) in g.nodes.iter().enumerate() {
        node.op.inputs().iter().for_each(|v| last[v.index()] = i);
    }
    *last.last_mut().unwrap() = g.nodes.len();
    last
}

proptest! {
    #[test]
    fn living_values_have_slots_of_their_own(
        choices in prop::collection::vec((0u8..13, any::<usize>(), any::<usize>(), 1usize..20), 0..60)
    ) {
        let g = graph(&choices);
        let plan = Plan::new(&g);
        let last = last_reads(&g);
        prop_assert_eq!(plan.slot.len(), g.nodes.len());
        for (j, node) in g.nodes.iter().enumerate() {
            let slot = plan.slot[j];
            prop_assert!(plan.width[slot] >= node.value.width, "%{} does not fit its slot\n{}", j, g);
            prop_assert_eq!(plan.outputs_only[slot], node.value.outputs_only, "rows of %{}\n{}", j, g);
            for (i, (&other, &read)) in plan.slot.iter().zip(&last).take(j).enumerate() {
                // written at j: the slot's earlier value must have been read by ops before j only
                prop_assert!(other != slot || read < j, "%{} and %{} share slot {}\n{}", i, j, slot, g);
            }
        }
    }

    #[test]
    fn bytes_are_those_of_all_slots(
        choices in prop::collection::vec((0u8..13, any::<usize>(), any::<usize>(), 1usize..20), 0..30),
        tokens in 1usize..600,
        outputs in 1usize..40,
    ) {
        let plan = Plan::new(&graph(&choices));
        let rooms: usize = (0..plan.width.len()).map(|s| plan.room(s, tokens, outputs)).sum();
        prop_assert_eq!(plan.bytes(tokens, outputs), 4 * rooms);
        for s in 0..plan.width.len() {
            let rows = if plan.outputs_only[s] { outputs } else { tokens };
            prop_assert_eq!(plan.room(s, tokens, outputs), rows * plan.width[s]);
        }
    }
}

/// A chain needs two slots however long it is, and the rows of the outputs one more.
#[test]
fn a_chain_goes_to_and_fro() {
    let mut g = Graph::new();
    let table = g.matrix("table", 9, 8).unwrap();
    let mut x = g.embed(table, 1.0);
    for _ in 0..10 {
        x = g.scale(x, 0.5);
    }
    g.outputs(x);
    let plan = Plan::new(&g);
    assert_eq!(plan.slot, [0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 2]);
    assert_eq!((plan.width, plan.outputs_only), (vec![8, 8, 8], vec![false, false, true]));
}

/// A value that is read twice by one op is freed once.
#[test]
fn twice_read_is_once_freed() {
    let mut g = Graph::new();
    let table = g.matrix("table", 9, 8).unwrap();
    let x = g.embed(table, 1.0);
    let y = g.add(x, x).unwrap();
    let a = g.scale(y, 2.0);
    let b = g.scale(y, 3.0);
    g.add(a, b).unwrap();
    let plan = Plan::new(&g);
    assert_eq!(plan.slot[..4], [0, 1, 0, 2]);
}

#[test]
fn an_empty_graph_takes_nothing() {
    let plan = Plan::new(&Graph::new());
    assert_eq!((plan.slot.len(), plan.bytes(512, 1)), (0, 0));
}
