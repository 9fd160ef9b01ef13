//! Launch strategies: the ways in which the phases of a step are launched, ordered by the tokens they serve.

use tern_graph::{BackendError, Step};

type Result<T> = std::result::Result<T, BackendError>;

/// The size of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct StepSize {
    pub(crate) tokens: usize,
    pub(crate) outputs: usize,
    /// The most tokens of one sequence.
    pub(crate) longest: usize,
    /// Whether it has tokens of an image that see each other.
    pub(crate) whole_images: bool,
}

/// A way to launch all phases of a step whose inputs are on the device.
pub(crate) trait LaunchStrategy: Send {
    /// For messages: what it launches, and for which steps.
    fn name(&self) -> String;

    /// Takes over kernels that were compiled in the background; waits for them if told to.
    fn finish_compiling(&mut self, _wait: bool) -> Result<()> {
        Ok(())
    }

    /// Whether it can run steps of this size now.
    fn serves(&self, size: StepSize) -> bool;

    /// The tokens of its largest step, if larger ones are launched in another way.
    fn border(&self) -> Option<usize> {
        None
    }

    /// Plans a step that it serves, and appends what its launches need to the step's inputs.
    fn plan(&mut self, _step: &Step, _words: &mut Vec<u32>) {}

    /// Submits the launches of the step that was planned last.
    fn launch(&mut self, size: StepSize) -> Result<()>;
}

/// The strategies of a program; the first one that serves a step runs it.
pub(crate) struct Strategies(Vec<Box<dyn LaunchStrategy>>);

impl Strategies {
    /// Those for the fewest tokens come first: they are the fastest for the steps they serve.
    pub(crate) fn new(list: Vec<Box<dyn LaunchStrategy>>) -> Strategies {
        Strategies(list)
    }

    /// The largest steps of strategies that others follow.
    pub(crate) fn borders(&self) -> Vec<usize> {
        self.0.iter().filter_map(|strategy| strategy.border()).collect()
    }

    /// See [`LaunchStrategy::finish_compiling`].
    pub(crate) fn finish_compiling(&mut self, wait: bool) -> Result<()> {
        self.0.iter_mut().try_for_each(|strategy| strategy.finish_compiling(wait))
    }

    /// The strategy of a step.
    pub(crate) fn of(&mut self, size: StepSize) -> Result<&mut dyn LaunchStrategy> {
        self.finish_compiling(false)?;
        if !self.0.iter().any(|strategy| strategy.serves(size)) {
            self.finish_compiling(true)?;
        }
        let Some(index) = self.0.iter().position(|strategy| strategy.serves(size)) else {
            let names: Vec<String> = self.0.iter().map(|strategy| strategy.name()).collect();
            let StepSize { tokens, outputs, .. } = size;
            return Err(BackendError::Invalid(format!(
                "no launch strategy serves a step of {tokens} tokens and {outputs} outputs; available: {}",
                names.join(", ")
            )));
        };
        Ok(&mut *self.0[index])
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
            let size = StepSize { tokens, outputs, longest: tokens, ..StepSize::default() };
            strategies.of(size).unwrap().launch(size).unwrap();
        }
        assert_eq!(*log.lock().unwrap(), [(1, 1), (4, 1), (64, 5)]);
        let refused = strategies
            .of(StepSize { tokens: 65, outputs: 1, longest: 1, ..StepSize::default() })
            .err()
            .unwrap()
            .to_string();
        assert!(refused.contains("a step of 65 tokens and 1 outputs; available: up to 1, up to 4, up to 64"));
    }
}
