//! The phases of a fused step: those of the launches, except that the linear of experts whose results are
//! added also adds them, that linears convolve what they compute, and that the experts of a token are in the
//! shared memory of every thread block instead of a value.

use tern_graph::{Graph, Plan, Val, Work};

use super::fused::{Fused, Linear, Matrices, Matrix, work};
use super::step_joins::join_linears;
use super::tagged_values::TaggedValues;

/// The phases of a fused step, and what they read and write.
pub(crate) struct StepPhases {
    pub(crate) fused: Vec<Fused>,
    pub(crate) work: Vec<Work>,
}

impl StepPhases {
    /// `None` if there are transforms of odd sizes, or experts that no phase of a fused step computes:
    /// matrices of f32, a matrix per head, results that are not added, or a choice that other phases read.
    pub(crate) fn of(graph: &Graph, fused: &[Fused]) -> Option<StepPhases> {
        let mut phases: Vec<Fused> = vec![];
        for phase in fused {
            match phase {
                Fused::Mix { x, route, add, out } => {
                    let at = phases.iter().position(|p| is_linear_of(p, *x, *route))?;
                    let Fused::Linear(linear) = phases.remove(at) else { return None };
                    if graph.nodes.iter().filter(|node| node.op.inputs().contains(x)).count() > 1 {
                        return None;
                    }
                    let parts = vec![Matrix { out: *out, ..linear.parts[0] }];
                    let matrices = Matrices::Mixed(*route);
                    phases.push(Fused::Linear(Linear { parts, add: *add, matrices, ..linear }));
                }
                other => phases.push(other.clone()),
            }
        }
        let phases = StepPhases::with_work(graph, phases);
        fits(graph, &phases.fused, &phases.work).then_some(phases)
    }

    fn with_work(graph: &Graph, fused: Vec<Fused>) -> StepPhases {
        let work = fused.iter().map(|phase| step_work(graph, phase)).collect();
        StepPhases { fused, work }
    }

    /// The phases with their joins and the values with tags; `None` if a value that needs tags has none.
    /// `plan` is that of the launches, with which values without tags share memory.
    pub(crate) fn passed(graph: &Graph, fused: &[Fused], plan: &Plan) -> Option<(StepPhases, TaggedValues)> {
        let plain = StepPhases::of(graph, fused)?;
        let tagged = TaggedValues::of(graph, &plain.fused, &plain.work, plan);
        let phases = StepPhases::with_work(graph, join_linears(graph, &plain.fused, &tagged));
        let tagged = TaggedValues::of(graph, &phases.fused, &phases.work, plan);
        phases.are_passed(graph, &tagged).then_some((phases, tagged))
    }

    /// Whether the values that need tags have them: logits, which have no other memory, and values of
    /// experts, whose memory the launches may use again before their results are added.
    fn are_passed(&self, graph: &Graph, tagged: &TaggedValues) -> bool {
        let has_tags = |v: Val| tagged.has(graph, v);
        self.fused.iter().all(|phase| match phase {
            Fused::Route(route) => route.router.is_none_or(|m| has_tags(m.out)),
            Fused::Linear(l) if matches!(l.matrices, Matrices::Mixed(_)) => has_tags(l.x),
            _ => true,
        })
    }
}

/// Whether the phase only computes `out`, with the experts that `route` has chosen.
fn is_linear_of(phase: &Fused, out: Val, route: Val) -> bool {
    let Fused::Linear(l) = phase else { return false };
    let plain = l.gated.is_none() && l.norm.is_none() && l.add.is_none() && !l.gather;
    plain && l.matrices == Matrices::Chosen(route) && l.parts.len() == 1 && l.parts[0].out == out
}

/// What a phase of a fused step reads and writes in memory: logits of a router, but no choice of experts.
fn step_work(graph: &Graph, phase: &Fused) -> Work {
    let mut work = work(graph, phase);
    match phase {
        Fused::Route(route) => work.writes = route.router.iter().map(|m| m.out).collect(),
        Fused::Linear(l) => work.reads.retain(|v| Some(*v) != l.matrices.route()),
        _ => {}
    }
    work
}

/// Whether a fused step computes all experts: each linear follows the choice of its experts,
/// which no other phase reads.
fn fits(graph: &Graph, phases: &[Fused], work: &[Work]) -> bool {
    let mut last = None; // blocks know one choice at a time
    let mut choices = vec![];
    for phase in phases {
        let fits = match phase {
            Fused::Route(route) => {
                last = Some(route.out);
                choices.push(route.out);
                true
            }
            Fused::Linear(l) => linear_fits(graph, l, last),
            Fused::FloatLinear(l) => l.matrices == Matrices::One,
            Fused::Mix { .. } => false,
            Fused::Transform(transform) => transform.fits_fused_step(graph),
            _ => true,
        };
        if !fits {
            return false;
        }
    }
    let is_result = choices.iter().any(|v| v.index() + 1 == graph.nodes.len());
    !is_result && !work.iter().any(|w| w.reads.iter().any(|v| choices.contains(v)))
}

fn linear_fits(graph: &Graph, l: &Linear, last: Option<Val>) -> bool {
    let (x, cols) = (graph.width(l.x), graph.weight(l.parts[0].weight).cols);
    let reads = |route: Val| l.x == route || l.add == Some(route);
    match l.matrices {
        Matrices::One => true,
        Matrices::Each => false,
        // all experts have the same x; matrices of several parts are gated
        Matrices::Chosen(route) => {
            let parts = l.parts.len() == if l.gated.is_some() { 2 } else { 1 };
            last == Some(route) && !reads(route) && x == cols && parts && l.add.is_none() && !l.gather
        }
        Matrices::Mixed(route) => {
            last == Some(route) && !reads(route) && x == cols * (graph.width(route) / 2)
        }
    }
}

#[cfg(test)]
mod tests {
    use tern_graph::{Activation, Gating, Op, Plan, Routing};
    use tern_quant::Q4_K;

    use super::super::fuse::fuse;
    use super::super::test_graphs::{decoder, expert_decoder};
    use super::*;
    use crate::weights::Layout;

    const ROUTING: Routing =
        Routing { used: 2, gating: Gating::Softmax, groups: None, renormalise: true, scale: 1.0 };

    /// The phases of a graph whose matrices are codes but for one.
    fn phases(graph: &Graph, floats: &str) -> Option<StepPhases> {
        let layout = |id| {
            let weight = graph.weight(id);
            Layout::of(&Q4_K).filter(|_| weight.rows > 1 && weight.name != floats && weight.name != "router")
        };
        let fused = fuse(graph, layout).unwrap();
        let main: Vec<Work> = fused.iter().map(|phase| work(graph, phase)).collect();
        let plan = Plan::of(graph, &main);
        StepPhases::of(graph, &fused)
            .filter(|step| step.are_passed(graph, &TaggedValues::of(graph, &step.fused, &step.work, &plan)))
    }

    #[test]
    fn a_decoder_is_unchanged() {
        let graph = decoder();
        let fused = fuse(&graph, |_| Layout::of(&Q4_K)).unwrap();
        assert_eq!(StepPhases::of(&graph, &fused).unwrap().fused, fused);
    }

    #[test]
    fn the_sum_of_experts_is_part_of_their_second_linear() {
        let graph = expert_decoder();
        let step = phases(&graph, "").unwrap();
        let experts: Vec<&Linear> = step
            .fused
            .iter()
            .filter_map(|p| if let Fused::Linear(l) = p { Some(l) } else { None })
            .filter(|l| l.matrices != Matrices::One)
            .collect();
        assert_eq!(experts.len(), 2);
        assert!(experts[0].gated.is_some() && matches!(experts[0].matrices, Matrices::Chosen(_)));
        assert!(experts[1].add.is_some() && matches!(experts[1].matrices, Matrices::Mixed(_)));
        assert!(!step.fused.iter().any(|p| matches!(p, Fused::Mix { .. })));
        // neither the choice nor the results of single experts are in memory
        let has_memory = |is: fn(&Op) -> bool| {
            let values = step.work.iter().flat_map(|w| w.reads.iter().chain(&w.writes));
            values.filter(|v| is(&graph.nodes[v.index()].op)).count() > 0
        };
        assert!(!has_memory(|op| matches!(op, Op::Route { .. } | Op::ExpertLinear { .. } | Op::Mix { .. })));
        assert!(has_memory(|op| matches!(op, Op::Gated { .. })));
    }

    #[test]
    fn tags_leave_no_barrier_in_a_decoder_of_experts() {
        let graph = expert_decoder();
        let step = phases(&graph, "").unwrap();
        let plan = Plan::of(&graph, &step.work);
        let tagged = TaggedValues::of(&graph, &step.fused, &step.work, &plan);
        assert!(!tagged.barriers.iter().any(|b| *b), "{:?}", tagged.barriers);
    }

    #[test]
    fn experts_of_floats_are_left_to_launches() {
        assert!(phases(&expert_decoder(), "gate").is_none());
        assert!(phases(&expert_decoder(), "down").is_none());
    }

    /// A graph of experts on an embedding, as `end` continues it from x, the choice and the
    /// value inside the experts.
    fn graph(end: impl Fn(&mut Graph, Val, Val, Val)) -> Graph {
        let mut g = Graph::new();
        let table = g.matrix("embed", 64, 256).unwrap();
        let router = g.matrix("router", 8, 256).unwrap();
        let x = g.embed(table, 1.0);
        let logits = g.linear(x, router).unwrap();
        let route = g.route(logits, None, ROUTING).unwrap();
        let [gate, up] = ["gate", "up"].map(|name| {
            let w = g.experts(name, 8, 128, 256).unwrap();
            g.expert_linear(x, Some(route), w).unwrap()
        });
        let hidden = g.gated(gate, up, Activation::Silu).unwrap();
        end(&mut g, x, route, hidden);
        g
    }

    #[test]
    fn graphs_that_end_inside_the_experts_are_left_to_launches() {
        let down = |g: &mut Graph, route, hidden| {
            let w = g.experts("down", 8, 256, 128).unwrap();
            g.expert_linear(hidden, Some(route), w).unwrap()
        };
        let whole = graph(|g, x, route, hidden| {
            let parts = down(g, route, hidden);
            let mixed = g.mix(parts, route).unwrap();
            g.add(x, mixed).unwrap();
        });
        assert!(phases(&whole, "").is_some());
        let single = graph(|g, _, route, hidden| {
            down(g, route, hidden);
        });
        assert!(phases(&single, "").is_none(), "results of single experts");
        let twice = graph(|g, _, route, hidden| {
            let parts = down(g, route, hidden);
            let mixed = g.mix(parts, route).unwrap();
            let first = g.columns(parts, 0, 256).unwrap();
            g.add(mixed, first).unwrap();
        });
        assert!(phases(&twice, "").is_none(), "results that another phase reads");
        let read = graph(|g, _, route, hidden| {
            let parts = down(g, route, hidden);
            let mixed = g.mix(parts, route).unwrap();
            let some = g.columns(mixed, 0, 4).unwrap();
            g.add(some, route).unwrap();
        });
        assert!(phases(&read, "").is_none(), "a choice that another phase reads");
        let mut alone = Graph::new();
        let table = alone.matrix("embed", 64, 8).unwrap();
        let logits = alone.embed(table, 1.0);
        alone.route(logits, None, ROUTING).unwrap();
        assert!(phases(&alone, "").is_none(), "the choice is the result");
    }
}
