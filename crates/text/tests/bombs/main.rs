//! Short templates that would be expensive to render: each fails quickly and with little memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::{Duration, Instant};

use serde_json::json;
use tern_text::{Cancelled, ChatInput, ChatTemplate, TemplateError};

/// CPU time limit of one template.
const TIME: Duration = Duration::from_secs(3);
/// Peak memory limit of one template.
const MEMORY: usize = 256 << 20;

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

/// Counts the memory of this thread.
struct Counting;

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.set(HELD.get().wrapping_add(layout.size()));
        PEAK.set(PEAK.get().max(HELD.get()));
        // SAFETY: the caller's layout is passed on
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        HELD.set(HELD.get().wrapping_sub(layout.size()));
        // SAFETY: `ptr` came from `alloc` with this layout
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// CPU time of this thread, which does not depend on the load of the machine.
fn on_core() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(Duration::from_nanos(stat.split_whitespace().next()?.parse().ok()?))
}

fn render(source: &str) -> Result<String, TemplateError> {
    let messages = json!([{"role": "user", "content": "A short message."}]);
    let input = ChatInput { messages, add_generation_prompt: true, ..ChatInput::default() };
    Ok(ChatTemplate::new(source, "<s>", "</s>")?.render(&input)?.text)
}

/// Renders within the bounds of time and memory.
fn bounded(source: &str) -> Result<String, TemplateError> {
    let (start, before) = (on_core(), HELD.get());
    PEAK.set(before);
    let clock = Instant::now();
    let made = render(source);
    let took = match (start, on_core()) {
        (Some(start), Some(end)) => end - start,
        _ => clock.elapsed(),
    };
    let held = PEAK.get() - before;
    let shown: String = source.chars().take(110).collect();
    let result: String = format!("{made:?}").chars().take(90).collect();
    println!("{:6.3} s {:5.1} MB  {shown}  {result}", took.as_secs_f64(), held as f64 / 1e6);
    assert!(took < TIME, "{shown} took {took:?}");
    assert!(held < MEMORY, "{shown} held {held} bytes");
    made
}

/// `{% set ns.x = .. %}` repeatedly.
fn again(times: usize, first: &str, step: &str) -> String {
    format!(
        "{{% set ns = namespace(x={first}, y={first}) %}}{{% for i in range({times}) %}}{step}{{% endfor %}}{{{{ ns.x|length }}}}"
    )
}

/// A list of numbers, or of maps with numbers, created once and used in a very long loop.
fn numbers(step: &str) -> String {
    format!(
        "{{% set l = range(99999)|list %}}{{% set m = range(99999)|list %}}{{% set ns = namespace(d={{}}) %}}\
         {{% for i in range(99999) %}}{step}{{% endfor %}}"
    )
}

fn bombs() -> Vec<String> {
    let repeat = |part: &str, times: usize| part.repeat(times);
    let grow = |step: &str| again(99, "'xxxxxxxx'", step);
    let nest = |step: &str| again(9_999, "[]", step);
    let raw = repeat("raw text ", 10_000);
    let mut all: Vec<String> = vec![
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}".into(),
        // strings that grow
        grow("{% set ns.x = ns.x ~ ns.x %}"),
        grow("{% set ns.x = ns.x + ns.x %}"),
        grow("{% set ns.x = ns.x * 99 %}"),
        grow("{% set ns.x = ns.x.replace('x', ns.x) %}"),
        grow("{% set ns.x = ns.x|replace('', ns.x) %}"),
        grow("{% set ns.x = ns.x.join([ns.x, ns.x]) %}"),
        grow("{% set ns.x = [ns.x, ns.x]|join(ns.x) %}"),
        grow("{% set ns.x = [ns.x, ns.x]|string %}"),
        grow("{% set ns.x = [ns.x, ns.x]|tojson %}"),
        grow("{% set ns.x = '%s%s'|format(ns.x, ns.x) %}"),
        grow("{% set ns.x = '{}{}'.format(ns.x, ns.x) %}"),
        grow("{% set ns.x = '{0}{0}'.format(ns.x) %}"),
        grow("{% set ns.x = '%s%s' % (ns.x, ns.x) %}"),
        grow("{% set x %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = x %}"),
        grow("{% set ns.x = ns.x|list + ns.x|list %}"),
        grow("{% set ns.x = (ns.x ~ '\\n' ~ ns.x)|indent(ns.x|length) %}"),
        grow("{% set ns.x = (ns.x ~ '\\n' ~ ns.x)|indent(ns.x) %}"),
        grow("{% set ns.x = ns.x.center(ns.x|length * 9) %}"),
        grow("{% set ns.x = [ns.x]|tojson(indent=ns.x|length) %}"),
        grow("{% set ns.x = (ns.x ~ ns.x)|upper|lower|title|capitalize|trim|e|safe|string %}"),
        grow("{% set ns.x = [ns.x, ns.x]|sum(start='') %}"),
        grow("{% filter upper %}{{ ns.x }}{% endfilter %}{% set ns.x = ns.x ~ ns.x %}"),
        // messages can grow too
        again(99, "messages[0].content", "{% set ns.x = ns.x ~ ns.x %}"),
        again(99999, "messages[0].content * 1000", "{% set y = ns.x ~ i %}{% set y = y.split('s') %}"),
        // lists that grow
        again(99, "[1]", "{% set ns.x = ns.x + ns.x %}"),
        again(99, "[1]", "{% set ns.x = ns.x * 2 %}"),
        again(99, "[1]", "{% set ns.x = ns.x|chain(ns.x)|list %}"),
        again(99, "[[1]]", "{% set ns.x = ns.x|sum(start=[]) + ns.x + ns.x %}"),
        again(99999, "{'a': 1}", "{% set ns.x = ns.x|chain({i: i}) %}"),
        "{{ [1] * 10 ** 8 }}".into(),
        "{{ [1] * 100000000 }}".into(),
        "{{ [1] * 1e8 }}".into(),
        "{{ (1, 2) * 10 ** 8 }}".into(),
        "{{ 'x' * 10 ** 9 }}".into(),
        "{% set n = 10 ** 8 %}{{ [1] * n }}".into(),
        "{% set n = 10 ** 9 %}{{ n * 'x' }}".into(),
        format!("{{{{ 'x' * {}1 }}}}", repeat("(1+1)*", 150)),
        "{{ 10 ** 9999999999 }}{{ (2 ** 127) * 'x' }}".into(),
        // widths
        "{{ 'x'.center(999999999999) }}".into(),
        "{{ 'x'.ljust(999999999999) }}".into(),
        "{{ 'x'.zfill(999999999999) }}".into(),
        "{{ 'x\ny'|indent(999999999999) }}".into(),
        "{{ [1]|tojson(indent=999999999999) }}".into(),
        "{{ '{:999999999999}'.format(1) }}".into(),
        "{{ '%999999999999d' % 1 }}".into(),
        "{{ '%.999999999999f' % 1 }}".into(),
        "{{ '%*d' % (999999999999, 1) }}".into(),
        "{{ '%.*f' % (999999999999, 1) }}".into(),
        "{{ '{:{}}'.format(1, 999999999999) }}".into(),
        "{{ [1]|batch(999999999999, 0) }}{{ [1]|slice(999999999999) }}".into(),
        "{{ [1]|slice(99999999)|list }}".into(),
        repeat("{{ 'x' * 99999999 }}", 999),
        repeat("{{ 'xxxxxxxx' * 999 * 999 }}", 999),
        repeat("{{ ('%999d' * 999) % (1,) }}", 999),
        // values in values
        nest("{% set ns.x = [ns.x] %}"),
        nest("{% set ns.x = {'a': ns.x} %}"),
        nest("{% set ns.x = (ns.x,) %}"),
        nest("{% set ns.x = dict(a=ns.x) %}"),
        again(9_999, "[1]", "{% set ns.x = ns.x|batch(1)|list %}"),
        again(9_999, "[1]", "{% set ns.x = ns.x|slice(1)|list %}"),
        again(9_999, "[1]", "{% set ns.x = ns.x|zip(ns.x)|list %}"),
        again(9_999, "[{'a': 1}]", "{% set ns.x = ns.x|groupby('a')|list %}{% set ns.x = [{'a': ns.x}] %}"),
        nest("{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{{ ns.x == ns.y }}"),
        nest("{% set ns.x = namespace(a=ns.x) %}"),
        nest("{% set ns.x = ns %}"),
        nest("{% set ns.x = [ns] %}"),
        nest("{% set ns.x = dict(a=ns) %}"),
        nest("{% set ns.x = ns.x + [1, 2, 3] %}{% for a in ns.x %}{% endfor %}"),
        // recursion
        "{% macro f(x) %}{{ f(x ~ x) }}{% endmacro %}{{ f('xxxxxxxx') }}".into(),
        "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}".into(),
        "{% macro f(x) %}{% call f(x) %}{{ caller() }}{% endcall %}{% endmacro %}{{ f(1) }}".into(),
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(99) }}".into(),
        "{% for x in [[]] recursive %}{{ loop([[]]) }}{% endfor %}".into(),
        "{% for x in [1, 1] recursive %}{% set y = loop([1, 1]) %}{% endfor %}".into(),
        // output
        format!("{{% set x %}}{{% for i in range(99999) %}}{raw}{{% endfor %}}{{% endset %}}"),
        format!("{{% for i in range(99999) %}}{raw}{{% endfor %}}"),
        "{% for i in range(99999) %}{% for j in range(99999) %}{{ messages[0].content }}{% endfor %}{% endfor %}".into(),
        // products whose sum overflows
        repeat("{{ 'x' * 18446744073709551615 }}", 2),
        // long source
        format!("{{{{ {}1 }}}}", repeat("1+", 99_999)),
        format!("{{{{ {}1 }}}}", repeat("a.b|", 9_999)),
        format!("{{{{ {}1{} }}}}", repeat("(", 9_999), repeat(")", 9_999)),
        format!("{{{{ {}1 }}}}", repeat("not ", 9_999)),
        format!("{{% if a %}}{}{{% endif %}}", repeat("{% elif a %}", 9_999)),
        format!("{}{}", repeat("{% if a %}", 9_999), repeat("{% endif %}", 9_999)),
        repeat("long ", 999_999),
        // expressions that made the engine panic
        "{{ 1 is divisibleby 0 }}".into(),
        "{{ -170141183460469231731687303715884105728 is divisibleby -1 }}".into(),
        "{% for x in [1] %}{{ loop.cycle() }}{% endfor %}".into(),
    ];
    // numbers in lists are visited, compared, hashed and sorted
    all.extend(
        [
            "{% set a = 99999 in l %}",
            "{% set a = 99999 not in l %}",
            "{% set a = l is in [m] %}",
            "{% set a = l|max %}",
            "{% set a = l|min %}",
            "{% set a = l|sum %}",
            "{% set a = l|sort %}",
            "{% set a = l|unique|list %}",
            "{% set a = l|join %}",
            "{% set a = l|tojson %}",
            "{% set a = l|string|length %}",
            "{% set a = l|list %}",
            "{% set a = l|reverse|list %}",
            "{% set a = l|first in m %}",
            "{% set a = l[1:] %}",
            "{% set a = l + m %}",
            "{% set a = l == m %}",
            "{% set a = l != m %}",
            "{% set a = l < m %}",
            "{% set a = l is eq m %}",
            "{% set a = l is sameas m %}",
            "{% set a = (i ~ '') in l|string %}",
            "{% set a = l|select('odd')|list %}",
            "{% set a = l|select('in', m)|list %}",
            "{% set a = [i]|select('in', l)|list %}",
            "{% set a = [{'a': i}]|selectattr('a', 'in', l)|list %}",
            "{% set a = l|map('string')|list %}",
            "{% set a = l|map('divisibleby', 2)|list %}",
            "{% set a = l|groupby('a') %}",
            "{% set a = l|batch(9)|list %}",
            "{% set a = l.index(99998) %}",
            "{% set a = l.count(1) %}",
            "{% set a = {l|string: 1} %}",
            "{% set a = ns.d[l] %}",
            "{% set a = ns.d.get(l) %}",
            "{% set a = dict([(l, i)]) %}",
            "{% set a = loop.changed(l) %}",
            "{% set a = loop.cycle(l, m) %}",
            "{% set a = dict(x=l) %}",
            "{% set a = namespace(x=l) %}",
            "{% set a = l|tojson|trim %}",
            "{{ l }}",
        ]
        .map(numbers),
    );
    all
}

#[test]
fn bombs_end() {
    let mut wrong = Vec::new();
    for source in bombs() {
        match bounded(&source) {
            Err(error) if !matches!(error, TemplateError::Engine(_)) => {}
            made => wrong.push(format!("{source:.200}: {made:.90?}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // long but harmless
    let repeat = |part: &str, times: usize| part.repeat(times);
    assert_eq!(render(&format!("{{{{ {}1 }}}}", repeat("-", 900))).as_deref(), Ok("1"));
    assert_eq!(render(&format!("{{{{ {}1 }}}}", repeat("1+", 400))).as_deref(), Ok("401"));
    assert!(render(&format!("{{% if a %}}{}{{% endif %}}", repeat("{% elif a %}", 499))).is_ok());
    assert_eq!(render("{{ '-' * 20 }}{{ 2 * 3 ** 2 }}").as_deref(), Ok("--------------------18"));
}

#[test]
fn former_panics_have_error_messages() {
    for (source, words) in [
        ("{{ 1 is divisibleby 0 }}", "invalid operation: divisibleby: 1 cannot be divided by 0"),
        (
            "{% for x in [1] %}{{ loop.cycle() }}{% endfor %}",
            "invalid operation: loop.cycle() takes at least one argument",
        ),
    ] {
        let error = render(source).unwrap_err().to_string();
        assert_eq!(error, format!("chat template, line 1: {words}"));
    }
    assert_eq!(render("{{ 6 is divisibleby 3 }}{{ 7 is divisibleby(3) }}").as_deref(), Ok("TrueFalse"));
    let cycle = "{% for x in [1, 2, 3] %}{{ loop.cycle('a', 'b') }}{% endfor %}";
    assert_eq!(render(cycle).as_deref(), Ok("aba"));
}

#[test]
fn a_cancelled_rendering_ends() {
    let messages = json!([{"role": "user", "content": "x".repeat(1 << 20)}]);
    let cancelled = Cancelled::when(|| true);
    let input = ChatInput { messages, cancelled, ..ChatInput::default() };
    let source = "{% for i in range(99999) %}{% set a = messages|tojson %}{% endfor %}";
    let template = ChatTemplate::new(source, "", "").unwrap();
    assert_eq!(template.render(&input), Err(TemplateError::Cancelled));
}

/// Reproducible random numbers: splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % n as u64) as usize
    }

    fn pick<'a>(&mut self, list: &[&'a str]) -> &'a str {
        list[self.below(list.len())]
    }
}

/// Expressions of a string (0), a list (1) or a number (2); `S`, `L` and `N` are replaced by random operands.
const WAYS: [&[&str]; 3] = [
    &[
        "'x'",
        "'a,b'",
        "ns.s",
        "messages[0].content",
        "S ~ S",
        "S + S",
        "S * 3",
        "S[1:]",
        "S[::-1]",
        "S|upper",
        "S|replace('x', S)",
        "S.replace('', S)",
        "S.strip('x')",
        "S.title()",
        "S.center(99)",
        "S|indent(9, true)",
        "S|title",
        "S|e",
        "S|safe",
        "S|trim",
        "L|join(',')",
        "L|join(S)",
        "S.join(L|map('string')|list)",
        "L|string",
        "L|tojson",
        "L|tojson(indent=9)",
        "N|string",
        "'%s %s' % (S, L)",
        "'{} {}'.format(S, L)",
        "m(S, L)",
        "S.removeprefix('x')",
        "(S.partition(',')|last)",
        "L|pprint",
        "L|first|string",
        "L|max|string",
        "(S if S in ns.s else 'y')",
        "dict(a=L)|tojson",
        "S.zfill(50)",
        "L|sum(start='')",
        "S|default(S, true)",
    ],
    &[
        "[1, 2]",
        "ns.l",
        "l",
        "[S]",
        "[L, L]",
        "[N, S]",
        "L + L",
        "L * 2",
        "L[1:]",
        "L|list",
        "S|list",
        "L|batch(2)|list",
        "L|slice(3)|list",
        "L|sort",
        "L|unique|list",
        "L|reverse|list",
        "S.split(',')",
        "S.splitlines()",
        "L|map('string')|list",
        "L|map('tojson')|list",
        "L|select|list",
        "L|reject('in', L)|list",
        "L|zip(L)|list",
        "L|chain(L)|list",
        "{'a': L, S: N}|dictsort",
        "{'a': L}.items()|list",
        "{'a': S}|items|list",
        "[{'a': N}]|groupby('a')|list",
        "[{'a': L}]|map(attribute='a')|list",
        "[{'a': N}]|selectattr('a', 'in', L)|list",
        "range(N % 999)|list",
        "(L, S)",
        "[L]|sum(start=L)",
        "dict(a=L).values()|list",
        "messages",
        "L|sort(reverse=true)",
        "S|reverse|list",
    ],
    &[
        "0",
        "1",
        "99999",
        "i",
        "ns.n",
        "N + N",
        "N - N",
        "N * N",
        "N % 7",
        "N // 3",
        "2 ** (N % 99)",
        "L|length",
        "S|length",
        "S.count('x')",
        "S.find('x')",
        "L|map('length')|sum",
        "(L == L)|int",
        "(L < L)|int",
        "(L != L)|int",
        "(N in L)|int",
        "(S in S)|int",
        "(L in [L])|int",
        "(N is divisibleby 3)|int",
        "(S is upper)|int",
        "loop.index",
        "(L is eq L)|int",
        "loop.changed(L)|int",
        "loop.cycle(N, N)",
        "L.count(N)",
        "S|int",
        "N|abs",
        "(N / 3)|round|int",
        "({S: N}[S])",
        "({'a': N}.get(S, N))",
        "S.startswith(S)|int",
    ],
];

/// An expression of one of the three kinds.
fn expression(random: &mut Random, kind: usize, depth: usize) -> String {
    let ways = WAYS[kind];
    let way = if depth == 0 { ways[random.below(3)] } else { random.pick(ways) };
    let mut out = String::new();
    for (at, c) in way.char_indices() {
        // a capital letter by itself
        let alone = !way[at + 1..].starts_with(|c: char| c.is_alphabetic());
        match ['S', 'L', 'N'].iter().position(|&letter| letter == c).filter(|_| alone) {
            Some(kind) if depth > 0 => out += &format!("({})", expression(random, kind, depth - 1)),
            Some(kind) => out += ["'x'", "[1]", "1"][kind],
            None => out.push(c),
        }
    }
    out
}

fn template(random: &mut Random) -> String {
    let mut body = String::new();
    for _ in 0..1 + random.below(4) {
        let depth = 1 + random.below(3);
        let [s, l, n] = [0, 1, 2].map(|kind| expression(random, kind, depth));
        body += &random
            .pick(&[
                "{% set ns.s = STR %}",
                "{% set ns.l = LIST %}",
                "{% set ns.n = NUM %}",
                "{% set ns.s = ns.s ~ (STR) %}",
                "{% set ns.l = ns.l + [LIST] %}",
                "{{ LIST }}",
                "{{ STR }}",
                "{% for j in LIST %}{{ STR }}{% endfor %}",
                "{% for j in STR %}{% set ns.n = NUM %}{{ j }}{% endfor %}",
                "{% if NUM %}{% set ns.l = ns.l + ns.l %}{% endif %}",
                "{% set z %}{{ STR }}{{ ns.s }}{% endset %}{% set ns.s = z %}",
                "{% for j in LIST recursive %}{{ loop([NUM]) if j is iterable else NUM }}{% endfor %}",
                "{% call m(STR) %}{{ ns.s }}{% endcall %}",
                "{% filter upper %}{{ STR }}{% endfilter %}",
            ])
            .replace("STR", &s)
            .replace("LIST", &l)
            .replace("NUM", &n);
    }
    format!(
        "{{% macro m(a=1, b=2) %}}{{{{ a }}}}{{{{ caller() if caller else b }}}}{{% endmacro %}}\
         {{% set l = range(99)|list %}}{{% set ns = namespace(s='xx', l=[1, 2], n=3) %}}\
         {{% for i in range(999) %}}{body}{{% endfor %}}"
    )
}

/// Any template ends within the limits, and the engine's panics are errors.
fn random_templates_end(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let source = template(&mut Random(seed));
        print!("{seed}: ");
        let made = bounded(&source);
        assert!(!matches!(made, Err(TemplateError::Engine(_))), "{made:?}: {source}");
    }
}

#[test]
fn some_random_templates_end() {
    random_templates_end(0..40);
}

#[test]
#[ignore = "minutes: run by hand"]
fn many_random_templates_end() {
    random_templates_end(1_000..3_000);
}
