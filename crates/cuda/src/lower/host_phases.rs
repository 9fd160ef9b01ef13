//! What the host does between the launches of a step: it writes rows that are given with the step, and
//! computes experts that are in its memory.

use tern_graph::{BackendError, Graph, Val};

use super::fused::{Fused, HostPhase, work};
use super::lowering::Lowering;

/// Results of the host are received before the first phase that reads them, and before other rows are sent:
/// the device runs the phases in between at the same time as the host.
pub(super) fn receive_late(graph: &Graph, phases: Vec<Fused>) -> Vec<Fused> {
    let mut all = Vec::with_capacity(phases.len());
    let mut sent: Option<HostPhase> = None;
    for phase in phases {
        let sends = match phase {
            Fused::Host(HostPhase::Send { piece, out, .. }) => Some(HostPhase::Receive { piece, out }),
            _ => None,
        };
        if let Some(receive) = sent
            && (sends.is_some() || work(graph, &phase).reads.iter().any(|v| receive.writes().contains(v)))
        {
            all.push(Fused::Host(receive));
            sent = None;
        }
        sent = sends.or(sent);
        all.push(phase);
    }
    all.extend(sent.map(Fused::Host));
    all
}

/// Rows on the device: one per token, without gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceRows {
    pub(crate) at: u64,
    pub(crate) width: usize,
}

/// A host phase with its addresses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum HostOp {
    Write { index: usize, to: DeviceRows },
    Send { x: DeviceRows, logits: DeviceRows },
    Receive { piece: usize, to: DeviceRows },
}

/// A host op, and how many kernel phases precede it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct HostStep<T> {
    pub(crate) after: usize,
    pub(crate) op: T,
}

/// The phases of kernels, and those of the host.
pub(crate) fn without_host(phases: Vec<Fused>) -> (Vec<Fused>, Vec<HostStep<HostPhase>>) {
    let (mut kernels, mut host) = (vec![], vec![]);
    for phase in phases {
        match phase {
            Fused::Host(op) => host.push(HostStep { after: kernels.len(), op }),
            phase => kernels.push(phase),
        }
    }
    (kernels, host)
}

impl Lowering<'_> {
    /// The addresses of host phases.
    pub(crate) fn host_ops(
        &self,
        phases: &[HostStep<HostPhase>],
    ) -> Result<Vec<HostStep<HostOp>>, BackendError> {
        let op = |phase: &HostStep<HostPhase>| {
            let op = match phase.op {
                HostPhase::Write { index, out } => HostOp::Write { index, to: self.rows(out)? },
                HostPhase::Send { x, logits, .. } => {
                    HostOp::Send { x: self.rows(x)?, logits: self.rows(logits)? }
                }
                HostPhase::Receive { piece, out } => HostOp::Receive { piece, to: self.rows(out)? },
            };
            Ok(HostStep { after: phase.after, op })
        };
        phases.iter().map(op).collect()
    }

    fn rows(&self, v: Val) -> Result<DeviceRows, BackendError> {
        let (view, width) = (self.view(v), self.graph.width(v));
        if view.stride != width as i64 || self.graph.value(v).outputs_only {
            let message = "experts on the host: their input is a part of the columns of another value";
            return Err(BackendError::Unsupported(message.into()));
        }
        Ok(DeviceRows { at: view.at, width })
    }
}

#[cfg(test)]
mod tests {
    use tern_graph::{Activation, Gating, Plan, Routing, Work};
    use tern_quant::Q4_K;

    use super::super::fuse::fuse;
    use super::*;
    use crate::weights::Layout;

    /// A layer with experts and a shared expert, all of whose routed experts are on the host.
    fn split() -> Graph {
        let mut g = Graph::new();
        let table = g.matrix("table", 64, 256).unwrap();
        let norm = g.vector("norm", 256).unwrap();
        let (router, shared) = (g.matrix("router", 8, 256).unwrap(), g.matrix("shared", 256, 256).unwrap());
        let experts = g.experts("experts", 8, 256, 256).unwrap();
        let x = g.embed(table, 1.0);
        let n = g.norm(x, norm, 1e-6).unwrap();
        let logits = g.linear(n, router).unwrap();
        let routing =
            Routing { used: 2, gating: Gating::Softmax, groups: None, renormalise: true, scale: 1.0 };
        let route = g.route(logits, None, routing).unwrap();
        let parts = g.expert_linear(n, Some(route), experts).unwrap();
        let mixed = g.mix(parts, route).unwrap();
        let gate = g.linear(n, shared).unwrap();
        let common = g.gated(gate, gate, Activation::Silu).unwrap();
        let sum = g.add(mixed, common).unwrap();
        let x = g.add(x, sum).unwrap();
        g.outputs(x);
        let split = g.split_experts(1, 3).unwrap();
        assert_eq!(split.device.weights.len(), g.weights.len() - 1);
        split.device
    }

    #[test]
    fn the_device_goes_on_until_it_needs_the_experts() {
        let graph = split();
        let codes = |id| Layout::of(&Q4_K).filter(|_| graph.weight(id).name == "shared");
        let all = fuse(&graph, codes).unwrap();
        let name = |phase: &Fused| match phase {
            Fused::Host(HostPhase::Send { piece, .. }) => format!("send {piece}"),
            Fused::Host(HostPhase::Receive { piece, .. }) => format!("receive {piece}"),
            Fused::Linear(_) => "linear".into(),
            Fused::FloatLinear(_) => "router".into(),
            Fused::Elements { kind, .. } => format!("{kind:?}"),
            Fused::Embed { .. } => "embed".into(),
            Fused::Norm { .. } => "norm".into(),
            Fused::Outputs { .. } => "outputs".into(),
            other => format!("{other:?}"),
        };
        let names: Vec<String> = all.iter().map(name).collect();
        let want =
            ["embed", "norm", "router", "send 3", "linear", "Silu", "receive 3", "Add", "Add", "outputs"];
        assert_eq!(names, want);
        // what the host writes shares no memory with what is read later
        let work: Vec<Work> = all.iter().map(|phase| work(&graph, phase)).collect();
        let plan = Plan::of(&graph, &work);
        let slot = |v: Val| plan.slot[v.index()];
        let (residual, received) = (work[0].writes[0], work[6].writes[0]);
        assert!(slot(residual) != slot(received) && slot(received) != slot(work[5].writes[0]));
        let (kernels, host) = without_host(all);
        assert_eq!((kernels.len(), host.iter().map(|step| step.after).collect::<Vec<_>>()), (8, vec![3, 5]));
    }
}
