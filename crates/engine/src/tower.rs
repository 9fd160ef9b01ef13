//! Runs the tower of images: two graphs on a backend, with a program per size of images.

use tern_graph::{
    Backend, Bindings, Buffer, Graph, Images, KvCells, KvSpec, LazyTensor, Output, PageTable, Program,
    Reserve, Slice, Step,
};

use crate::EngineError;

/// Rows of the smallest program.
const LEAST: usize = 256;
/// Tokens per page of keys and values, which live for one image.
const PAGE_LEN: usize = 32;

/// A tower on a backend.
pub struct TowerRunner {
    backend: Box<dyn Backend>,
    stages: Vec<Stage>,
}

/// One graph with its weights.
struct Stage {
    graph: Graph,
    weights: Vec<Buffer>,
    /// Programs with the largest number of rows of each, in order.
    programs: Vec<(usize, Program)>,
}

impl TowerRunner {
    /// Stores the weights of the graphs of a tower, in order.
    pub fn new(
        mut backend: Box<dyn Backend>,
        stages: impl IntoIterator<Item = (Graph, Vec<LazyTensor>)>,
    ) -> Result<TowerRunner, EngineError> {
        let mut stored = vec![];
        for (graph, tensors) in stages {
            let mut weights = Vec::with_capacity(tensors.len());
            for (tensor, roles) in tensors.iter().zip(graph.roles()) {
                let tensor = tensor.make().map_err(|e| EngineError::Load(e.to_string()))?;
                weights.push(backend.store(&tensor, roles)?);
            }
            stored.push(Stage { graph, weights, programs: vec![] });
        }
        Ok(TowerRunner { backend, stages: stored })
    }

    /// The rows of one stage for inputs of `rows` rows each, with these positions.
    pub fn run(
        &mut self,
        stage: usize,
        inputs: Vec<Vec<f32>>,
        rows: usize,
        images: Images,
    ) -> Result<Vec<f32>, EngineError> {
        let Some(stage) = self.stages.get_mut(stage) else {
            return Err(EngineError::Runner(format!("a tower has no stage {stage}")));
        };
        let program = stage.program(&mut *self.backend, rows)?;
        let pages = if stage.graph.kv.is_empty() { 0 } else { rows.div_ceil(PAGE_LEN) };
        let pages: PageTable = (0..pages as u32).collect();
        let step = Step {
            tokens: vec![0; rows],
            slices: vec![Slice { images, ..Slice::new(rows, 0, pages) }],
            outputs: (0..rows).map(|row| Output { row, sample: None, logits: true }).collect(),
            inputs,
            ..Step::default()
        };
        let ticket = self.backend.submit(program, step)?;
        let rows = self.backend.collect(ticket)?.rows;
        Ok(rows.into_iter().flat_map(|row| row.logits.unwrap_or_default()).collect())
    }

    /// The backend, for its name and memory.
    pub fn backend(&self) -> &dyn Backend {
        &*self.backend
    }
}

impl Stage {
    /// The smallest program for this many rows, compiled on first use.
    fn program(&mut self, backend: &mut dyn Backend, rows: usize) -> Result<Program, EngineError> {
        let most = rows.next_power_of_two().max(LEAST);
        let at = self.programs.partition_point(|(size, _)| *size < most);
        if let Some((size, program)) = self.programs.get(at)
            && *size == most
        {
            return Ok(*program);
        }
        let layers = self.graph.kv.clone();
        let kv = match layers.is_empty() {
            true => None,
            false => {
                let pages = most / PAGE_LEN;
                let cells = match backend.kv_cells().contains(&KvCells::F32) {
                    true => KvCells::F32,
                    false => KvCells::F16,
                };
                let spec = KvSpec { layers, cells, pages, page_len: PAGE_LEN, window: None };
                Some(backend.reserve(&Reserve::Kv(spec))?)
            }
        };
        let weights = &self.weights;
        let bindings = Bindings { weights, kv, state: None, max_tokens: most, max_outputs: most };
        let program = backend.compile(&self.graph, &bindings)?;
        self.programs.insert(at, (most, program));
        Ok(program)
    }
}
