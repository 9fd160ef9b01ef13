//! Launch strategies: the ways in which the phases of a step are launched, ordered by the tokens they serve.

use tern_graph::BackendError;

type Result<T> = std::result::Result<T, BackendError>;

/// The size of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StepSize {
    pub(crate) tokens: usize,
    pub(crate) outputs: usize,
}

/// A way to launch all phases of a step whose inputs are on the device.
pub(crate) trait LaunchStrategy: Send {
    /// For messages: what it launches, and for which steps.
    fn name(&self) -> String;

    /// Whether it can run steps of this size.
    fn serves(&self, size: StepSize) -> bool;

    /// Submits the launches of a step that it serves.
    fn launch(&mut self, size: StepSize) -> Result<()>;
}

/// The strategies of a program; the first one that serves a step runs it.
pub(crate) struct Strategies(Vec<Box<dyn LaunchStrategy>>);

impl Strategies {
    /// Those for the fewest tokens come first: they are the fastest for the steps they serve.
    pub(crate) fn new(list: Vec<Box<dyn LaunchStrategy>>) -> Strategies {
        Strategies(list)
    }

    pub(crate) fn launch(&mut self, size: StepSize) -> Result<()> {
        if let Some(strategy) = self.0.iter_mut().find(|strategy| strategy.serves(size)) {
            return strategy.launch(size);
        }
        let names: Vec<String> = self.0.iter().map(|strategy| strategy.name()).collect();
        let StepSize { tokens, outputs } = size;
        Err(BackendError::Invalid(format!(
            "no launch strategy serves a step of {tokens} tokens and {outputs} outputs; available: {}",
            names.join(", ")
        )))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::Mutex;

    use super::*;

    /// Records the steps that it launches.
    struct Recorded {
        most: usize,
        log: Arc<Mutex<Vec<(usize, usize)>>>,
    }

    impl LaunchStrategy for Recorded {
        fn name(&self) -> String {
            format!("up to {}", self.most)
        }

        fn serves(&self, size: StepSize) -> bool {
            size.tokens.max(size.outputs) <= self.most
        }

        fn launch(&mut self, size: StepSize) -> Result<()> {
            self.log.lock().unwrap().push((self.most, size.tokens));
            Ok(())
        }
    }

    #[test]
    fn the_first_strategy_that_serves_a_step_runs_it() {
        let log = Arc::new(Mutex::new(vec![]));
        let list = [1, 4, 64]
            .map(|most| -> Box<dyn LaunchStrategy> { Box::new(Recorded { most, log: Arc::clone(&log) }) });
        let mut strategies = Strategies::new(list.into());
        for (tokens, outputs) in [(1, 1), (1, 2), (5, 0)] {
            strategies.launch(StepSize { tokens, outputs }).unwrap();
        }
        assert_eq!(*log.lock().unwrap(), [(1, 1), (4, 1), (64, 5)]);
        let refused = strategies.launch(StepSize { tokens: 65, outputs: 1 }).unwrap_err().to_string();
        assert!(refused.contains("a step of 65 tokens and 1 outputs; available: up to 1, up to 4, up to 64"));
    }
}
