//! The cache on disk: a text is the same with it and without, whatever leaves memory and comes back, also
//! after a restart. The scripted runner fails if a page or a state holds anything else.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use tern_engine::{
    AdapterScales, Answer, Batch, CacheFormat, Capacity, DiskCache, Engine, EngineError, Event, Handle,
    Images, Limits, Place, Request, Runner, Sampling, ScriptedRunner, StateCapacity, WindowPages,
};
use tern_graph::ImageRows;

const PAGE: usize = 8;

/// What the layers of a model keep.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Layers {
    Plain,
    Windowed,
    Recurrent,
}

const ALL: [Layers; 3] = [Layers::Plain, Layers::Windowed, Layers::Recurrent];

fn capacity(layers: Layers, pages: usize) -> Capacity {
    let window = (layers == Layers::Windowed).then_some(WindowPages { tokens: 20, pages });
    let state = (layers == Layers::Recurrent).then_some(StateCapacity { slots: 12, bytes: 8 });
    Capacity { pages, page_len: PAGE, max_tokens: 32, max_outputs: 4, window, state }
}

fn cache(folder: &Path) -> DiskCache {
    DiskCache::open(folder, 1 << 30, Arc::new(|line: &str| assert!(line.is_empty(), "logged: {line}")))
        .unwrap()
}

fn engine(layers: Layers, pages: usize, disk: Option<DiskCache>) -> Handle {
    let limits = Limits { max_seqs: 4, max_context: 400, max_waiting: 100, step_millis: 0 };
    let runner = ScriptedRunner::new(50, capacity(layers, pages));
    Engine::start_with(Box::new(runner), limits, disk).unwrap()
}

/// The text of a request and how many of its tokens were cached.
fn answer(engine: &Handle, request: &Request) -> (Vec<u32>, usize) {
    let (mut text, mut cached) = (vec![], 0);
    for event in engine.generate(request.clone()).unwrap() {
        match event {
            Event::Started { cached: tokens } => cached = tokens,
            Event::Token(token) => text.push(token.id),
            Event::Failed(why) => panic!("{why}"),
            _ => {}
        }
    }
    (text, cached)
}

/// Waits until all that has left memory is on disk.
fn settle(engine: &Handle) {
    let start = Instant::now();
    while engine.stats().disk_queued > 0 {
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", engine.stats());
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn prompt(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| (i * 31 + seed * 17 + i * i * seed) % 50).collect()
}

#[test]
fn a_prefix_comes_back_after_a_restart() {
    for layers in ALL {
        let folder = tempfile::tempdir().unwrap();
        let request = Request::new(prompt(3, 100), 5);
        let first = engine(layers, 60, Some(cache(folder.path())));
        let (text, cached) = answer(&first, &request);
        assert_eq!(cached, 0);
        first.shutdown();
        let written = first.stats();
        assert!(written.disk_writes >= 12 && written.disk_files as u64 == written.disk_writes, "{written:?}");
        drop(first);
        for _ in 0..2 {
            let second = engine(layers, 60, Some(cache(folder.path())));
            let (again, cached) = answer(&second, &request);
            assert_eq!(again, text, "{layers:?}");
            // all whole pages but that of the last token; with recurrent layers the last mark of the prompt
            let want = if layers == Layers::Recurrent { 80 } else { 96 };
            assert_eq!(cached, want, "{layers:?}");
            assert_eq!(second.stats().disk_hit_tokens, want as u64, "{layers:?}");
            let more = Request::new([prompt(3, 100), text.clone(), prompt(9, 20)].concat(), 5);
            assert!(answer(&second, &more).1 >= cached, "a second turn");
            let turn = engine(layers, 60, None);
            assert_eq!(answer(&turn, &more).0, answer(&second, &more).0);
        }
    }
}

#[test]
fn what_leaves_memory_comes_back_while_the_engine_runs() {
    for layers in ALL {
        let folder = tempfile::tempdir().unwrap();
        let (with, without) = (engine(layers, 30, Some(cache(folder.path()))), engine(layers, 30, None));
        // each takes half of the pages: the first is gone when it comes again
        for round in 0..3 {
            for seed in 0..4 {
                let request = Request::new(prompt(seed, 110), 4);
                let (text, cached) = answer(&with, &request);
                assert_eq!(text, answer(&without, &request).0, "{layers:?} {round} {seed}");
                assert_eq!(cached > 0, round > 0, "{layers:?} {round} {seed}: {cached}");
                settle(&with);
            }
        }
        let stats = with.stats();
        assert!(stats.disk_hit_tokens >= 2 * 4 * 80, "{layers:?} {stats:?}");
        assert_eq!(stats.pages_free, 30);
    }
}

#[test]
fn adapters_seeds_and_other_prompts_have_their_own_pages() {
    let folder = tempfile::tempdir().unwrap();
    let adapted = |scales: &[f32], seed| Request {
        adapters: AdapterScales::new(scales),
        sampling: Sampling { temperature: 1.0, seed, ..Sampling::default() },
        ..Request::new(prompt(2, 60), 6)
    };
    let requests =
        [adapted(&[], 1), adapted(&[1.0], 1), adapted(&[0.5], 2), adapted(&[0.0, 1.0], 1), adapted(&[], 2)];
    let first = engine(Layers::Plain, 100, Some(cache(folder.path())));
    let texts: Vec<_> = requests.iter().map(|request| answer(&first, request)).collect();
    let cached: Vec<usize> = texts.iter().map(|(_, cached)| *cached).collect();
    assert_eq!(cached, [0, 0, 0, 0, 56]);
    drop(first);
    let second = engine(Layers::Plain, 100, Some(cache(folder.path())));
    for (request, (text, _)) in requests.iter().zip(&texts) {
        assert_eq!(answer(&second, request), (text.clone(), 56), "{request:?}");
    }
}

/// A scripted runner whose sequences may have images.
struct Seeing(ScriptedRunner);

impl Runner for Seeing {
    fn submit(&mut self, batch: &Batch) -> Result<(), EngineError> {
        self.0.submit(batch)
    }

    fn collect(&mut self) -> Result<Vec<Answer>, EngineError> {
        self.0.collect()
    }

    fn capacity(&self) -> Capacity {
        self.0.capacity()
    }

    fn image_width(&self) -> usize {
        4
    }

    fn cache_format(&self) -> Option<CacheFormat> {
        self.0.cache_format()
    }

    fn read_cache(&mut self, place: Place, to: &mut Vec<u8>) -> Result<(), EngineError> {
        self.0.read_cache(place, to)
    }

    fn write_cache(&mut self, place: Place, bytes: &[u8]) -> Result<(), EngineError> {
        self.0.write_cache(place, bytes)
    }
}

#[test]
fn images_are_found_by_their_rows_and_not_by_their_number() {
    let folder = tempfile::tempdir().unwrap();
    let start = || {
        let limits = Limits { max_seqs: 4, max_context: 400, max_waiting: 100, step_millis: 0 };
        let runner = Seeing(ScriptedRunner::new(50, capacity(Layers::Plain, 60)));
        Engine::start_with(Box::new(runner), limits, Some(cache(folder.path()))).unwrap()
    };
    let with_image = |id, value: f32| {
        let rows = ImageRows { id, width: 4, values: vec![value; 80], len: 20, grid: None };
        Request { images: Images::new([(30, Arc::new(rows))]), ..Request::new(prompt(3, 100), 4) }
    };
    let first = start();
    assert_eq!(answer(&first, &with_image(7, 0.5)).1, 0);
    drop(first);
    let second = start();
    assert_eq!(answer(&second, &with_image(7, 0.25)).1, 24, "the tokens before another image");
    assert_eq!(answer(&second, &with_image(9, 0.5)).1, 96, "the same image with another number");
    assert_eq!(answer(&second, &Request::new(prompt(3, 100), 4)).1, 24, "no image");
}

#[test]
fn a_disk_that_does_not_answer_delays_a_text_and_does_not_stop_it() {
    let folder = tempfile::tempdir().unwrap();
    let request = Request::new(prompt(3, 100), 5);
    let first = engine(Layers::Plain, 60, Some(cache(folder.path())));
    let (text, _) = answer(&first, &request);
    drop(first);
    // the first page is damaged, and the line about it keeps the disk's thread busy
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|ending| ending == "page") {
            std::fs::write(path, b"damaged").unwrap();
        }
    }
    let log = Arc::new(move |_: &str| {
        let _ = wait.lock().unwrap().recv();
    });
    let disk = DiskCache::open(folder.path(), 1 << 30, log).unwrap();
    let second = engine(Layers::Plain, 60, Some(disk));
    let start = Instant::now();
    assert_eq!(answer(&second, &request), (text, 0));
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    assert_eq!(second.stats().running, 0);
    drop(go); // the thread continues
}

#[test]
fn a_cancelled_request_and_a_shutdown_do_not_wait_for_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let request = Request::new(prompt(3, 100), 5);
    let first = engine(Layers::Plain, 60, Some(cache(folder.path())));
    let (text, _) = answer(&first, &request);
    drop(first);
    let second = engine(Layers::Plain, 60, Some(cache(folder.path())));
    (0..20).for_each(|_| drop(second.generate(request.clone()).unwrap()));
    assert_eq!(answer(&second, &request).0, text);
    let stream = second.generate(request.clone()).unwrap();
    second.shutdown();
    drop(stream);
}

#[test]
fn a_runner_that_runs_ahead_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let limits = Limits { max_seqs: 4, max_context: 400, max_waiting: 100, step_millis: 0 };
    let runner = ScriptedRunner::new(50, capacity(Layers::Plain, 60)).running_ahead();
    let refused = Engine::start_with(Box::new(runner), limits, Some(cache(folder.path()))).err();
    assert_eq!(refused, Some(EngineError::NoDiskCache));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// Many requests at once with common beginnings, few pages, and restarts in between.
    #[test]
    fn texts_are_those_without_a_disk(
        layers in prop::sample::select(ALL.to_vec()),
        pages in 24usize..60,
        rounds in prop::collection::vec(
            prop::collection::vec((0u32..3, 1usize..150, 0u32..3, 1usize..6, any::<bool>()), 1..8),
            1..4,
        ),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let without = engine(layers, 60, None);
        for requests in rounds {
            let with = engine(layers, pages, Some(cache(folder.path())));
            let requests: Vec<Request> = requests
                .into_iter()
                .map(|(seed, len, end, answer, adapted)| {
                    let adapters = AdapterScales::new(if adapted { &[0.5] } else { &[] });
                    let prompt = [prompt(seed, len), prompt(20 + end, 5)].concat();
                    Request { adapters, ..Request::new(prompt, answer) }
                })
                .collect();
            let streams: Vec<_> = requests.iter().map(|r| with.generate(r.clone()).unwrap()).collect();
            for (stream, request) in streams.into_iter().zip(&requests) {
                let mut text = vec![];
                for event in stream {
                    match event {
                        Event::Token(token) => text.push(token.id),
                        Event::Failed(why) => return Err(TestCaseError::fail(why.to_string())),
                        _ => {}
                    }
                }
                prop_assert_eq!(&text, &answer(&without, request).0);
            }
            let stats = with.stats();
            prop_assert_eq!((stats.running, stats.waiting, stats.pages_free), (0, 0, pages));
            with.shutdown();
            prop_assert_eq!(with.ended(), Some(EngineError::Stopped));
        }
    }
}
