//! Random templates end within the limits.

use tern_text::TemplateError;

use crate::bounded::bounded;

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
