//! The ops of mixtures of experts, with checked shapes.

use crate::graph::{Result, fail};
use crate::{Graph, Op, Routing, Val, Value, Weight, WeightId};

/// Ids of experts are exact as floats, and as 16-bit integers.
const MAX_EXPERTS: usize = 1 << 15;

impl Graph {
    /// Declares the matrices of experts, each of `rows` rows.
    pub fn experts(
        &mut self,
        name: impl Into<String>,
        experts: usize,
        rows: usize,
        cols: usize,
    ) -> Result<WeightId> {
        let name = name.into();
        let Some(rows) = rows.checked_mul(experts).filter(|_| experts > 0) else {
            return fail(format!("{name}: {experts} experts of {rows} rows"));
        };
        self.declare(Weight { name, rows, cols, experts, rotation: None })
    }

    /// See [`Op::Route`].
    pub fn route(&mut self, logits: Val, bias: Option<WeightId>, args: Routing) -> Result<Val> {
        self.check_tokens("route", logits)?;
        let (experts, used) = (self.width(logits), args.used);
        if used == 0 || used > experts {
            return fail(format!("route: {used} of {experts} experts per token"));
        }
        if let Some(groups) = args.groups {
            let (count, some) = (groups.count, groups.used);
            if count == 0 || !experts.is_multiple_of(count) {
                return fail(format!("route: {experts} experts in {count} groups"));
            }
            if some == 0 || some > count || used > some * (experts / count) {
                return fail(format!("route: {used} of {experts} experts from {some} of {count} groups"));
            }
        }
        if experts > MAX_EXPERTS {
            return fail(format!("route: {experts} experts, at most {MAX_EXPERTS}"));
        }
        self.check_vector(bias, experts)?;
        Ok(self.push(Op::Route { logits, bias, args }, Value { width: 2 * used, outputs_only: false }))
    }

    /// See [`Op::ExpertLinear`].
    pub fn expert_linear(&mut self, x: Val, route: Option<Val>, weight: WeightId) -> Result<Val> {
        self.expert_linear_with(x, route, weight, None, None)
    }

    /// See [`Op::ExpertLinear`].
    pub fn expert_linear_with(
        &mut self,
        x: Val,
        route: Option<Val>,
        weight: WeightId,
        scale: Option<WeightId>,
        bias: Option<WeightId>,
    ) -> Result<Val> {
        self.check_tokens("expert_linear", x)?;
        let rotation = self.weight(weight).rotation;
        let x = self.rotated(x, rotation)?;
        let Weight { name, rows, cols, experts, .. } = self.weight(weight);
        let (name, each, cols, experts) = (name.clone(), rows / experts, *cols, *experts);
        let used = match route {
            Some(route) => {
                let (routed, args) = self.routing(route)?;
                if routed != experts {
                    return fail(format!("{name}: {experts} experts, routed are {routed}"));
                }
                args.used
            }
            None => experts,
        };
        let width = self.width(x);
        if width != used * cols && (width != cols || route.is_none()) {
            return fail(format!("{name}: {used} linears of {cols} columns on a value of {width}"));
        }
        self.check_vector(scale, experts)?;
        if let Some(w) = bias.map(|id| self.weight(id)).filter(|w| w.rows * w.cols != experts * each) {
            return fail(format!("{}: want [{experts}, {each}], declared as {}", w.name, w.shape()));
        }
        let value = Value { width: used * each, outputs_only: false };
        Ok(self.push(Op::ExpertLinear { x, route, weight, scale, bias }, value))
    }

    /// See [`Op::Mix`].
    pub fn mix(&mut self, x: Val, route: Val) -> Result<Val> {
        let (_, args) = self.routing(route)?;
        let (width, used) = (self.width(x), args.used);
        if !width.is_multiple_of(used) || self.value(x).outputs_only {
            return fail(format!("mix: {used} parts of a value of {width}"));
        }
        Ok(self.push(Op::Mix { x, route }, Value { width: width / used, outputs_only: false }))
    }

    /// Experts of each weight that one token reads, and all of them, in the order of
    /// `weights`: 1 of 1 for most.
    pub fn experts_used(&self) -> Vec<[usize; 2]> {
        let mut used: Vec<_> = self.weights.iter().map(|w| [w.experts; 2]).collect();
        for node in &self.nodes {
            if let Op::ExpertLinear { route: Some(route), weight, .. } = node.op {
                used[weight.index()][0] = self.width(route) / 2;
            }
        }
        used
    }

    /// The experts that a route chooses from, and how.
    fn routing(&self, route: Val) -> Result<(usize, Routing)> {
        match self.nodes[route.index()].op {
            Op::Route { logits, args, .. } => Ok((self.width(logits), args)),
            ref op => fail(format!("want a route, got {}", op.name())),
        }
    }
}
