use expect_test::expect;

use super::*;

fn competitor(name: &str, seconds: &[f64]) -> Competitor {
    let run = |&work: &f64| Run {
        work,
        process: work + 2.0,
        cpu: work * 2.0,
        peak_bytes: 500_000_000,
    };
    Competitor {
        name: name.to_owned(),
        is_ours: name.starts_with("graphflat"),
        one_core: name.contains("one core"),
        version: (name == "DGL").then(|| "2.1.0 (torch 2.2.1)".to_owned()),
        runs: seconds.iter().map(run).collect(),
        failure: None,
    }
}

fn race(name: &str, edges: u64, of_process: bool, competitors: Vec<Competitor>) -> Measured {
    Measured {
        name: name.to_owned(),
        edges,
        of_process,
        competitors,
    }
}

/// Two groups, a failure, and a family on two sizes.
pub(crate) fn record() -> Record {
    let mut torch = competitor("torch CSR", &[]);
    torch.failure = Some("exit status: 1: out of memory".to_owned());
    let small = vec![
        competitor("graphflat", &[0.1, 0.11, 0.09]),
        competitor("DGL", &[0.4]),
        competitor("DGL, tuned", &[0.25, 0.35]),
        torch,
    ];
    let large = vec![competitor("graphflat", &[1.6]), competitor("DGL", &[3.2])];
    Record {
        machine: Machine {
            processor: "AMD EPYC".to_owned(),
            cores: 2,
            memory_bytes: 24_000_000_000,
            caches: vec!["L1d 32K".to_owned(), "L3 32M".to_owned()],
            instructions: vec!["avx2".to_owned(), "avx512f".to_owned()],
            kernel: "Linux 6.1".to_owned(),
            date: "2026-11-24 22:00 UTC".to_owned(),
            load: 1.5,
        },
        program: "graphflat 0.1.0".to_owned(),
        turns: 3,
        left_out: vec!["polars is left out: no Python".to_owned()],
        races: vec![
            race("infer.sage.S", 2_000_000, false, small),
            race("infer.sage.M", 16_000_000, false, large),
            race(
                "cores.rows.S",
                2_000_000,
                true,
                vec![
                    competitor("graphflat", &[1.0]),
                    competitor("graphflat, one core", &[3.0]),
                ],
            ),
        ],
    }
}

#[test]
fn a_report_has_all_figures() {
    let plots = ["infer.svg", "growth.svg"].map(str::to_owned);
    expect![[r#"
        # Race

        | | |
        |---|---|
        | processor | AMD EPYC |
        | cores | 2 |
        | caches of a core | L1d 32K, L3 32M |
        | instructions | avx2, avx512f |
        | memory | 24 GB |
        | kernel | Linux 6.1 |
        | date | 2026-11-24 22:00 UTC |
        | load average at the start | 1.50 |
        | graphflat | graphflat 0.1.0 |
        | turns | 3 |
        | DGL | 2.1.0 (torch 2.2.1) |

        **Warning**: the machine was busy at the start (load average 1.50), so the seconds are too long and vary; ratios are better.

        Figures are medians, in brackets least and most. *Work* leaves out the start of a program and its
        imports, as each script defines it. *To ours* is a competitor's figure divided by graphflat's first
        one, of the column in bold. *Tuned* means glibc's allocator with settings that keep freed memory.

        ## infer

        | race | competitor | **work, s** | process, s | CPU s | peak memory | to ours |
        |---|---|---|---|---|---|---|
        | infer.sage.S | graphflat | 0.100 (0.0900 to 0.110) | 2.10 (2.09 to 2.11) | 0.200 | 0.50 GB | 1.00 |
        | infer.sage.S | DGL | 0.400 | 2.40 | 0.800 | 0.50 GB | 4.00 |
        | infer.sage.S | DGL, tuned | 0.300 (0.250 to 0.350) | 2.30 (2.25 to 2.35) | 0.600 | 0.50 GB | 3.00 |
        | infer.sage.S | torch CSR | - | - | - | - | failed |
        | infer.sage.M | graphflat | 1.60 | 3.60 | 3.20 | 0.50 GB | 1.00 |
        | infer.sage.M | DGL | 3.20 | 5.20 | 6.40 | 0.50 GB | 2.00 |

        How many times as long as graphflat the fastest peer takes, and how many times as much memory the
        leanest needs:

        | race | fastest peer | work | process | memory |
        |---|---|---|---|---|
        | infer.sage.S | DGL, tuned | 3.00 | 1.10 | 1.00 |
        | infer.sage.M | DGL | 2.00 | 1.44 | 1.00 |

        ![infer](infer.svg)

        ## cores

        | race | competitor | work, s | **process, s** | CPU s | peak memory | to ours |
        |---|---|---|---|---|---|---|
        | cores.rows.S | graphflat | 1.00 | 3.00 | 2.00 | 0.50 GB | 1.00 |
        | cores.rows.S | graphflat, one core | 3.00 | 5.00 | 6.00 | 0.50 GB | 1.67 |

        ## growth

        Nanoseconds for each edge of the graph, and how many times as long an edge of the largest graph
        takes as one of M; without M or a larger graph, as one of the smallest:

        | races | millions of edges | graphflat | factor | fastest peer | factor |
        |---|---|---|---|---|---|
        | infer.sage | 2, 16 | 50, 100 | 2.00 | 150, 200 | 1.33 |

        ![growth](growth.svg)

        ## Failures

        - infer.sage.S: torch CSR failed: exit status: 1: out of memory

        ## Left out

        - polars is left out: no Python
    "#]].assert_eq(&markdown(&record(), &plots));
}

#[test]
fn a_record_is_read_as_it_was_written() {
    let dir = tempfile::tempdir().unwrap();
    let written = record();
    written.save(dir.path()).unwrap();
    let read = Record::load(dir.path()).unwrap();
    assert_eq!(markdown(&read, &[]), markdown(&written, &[]));
}

#[test]
fn seconds_have_three_digits() {
    let texts = [0.000_65, 0.0123, 0.259, 1.874, 68.94].map(seconds);
    assert_eq!(texts, ["0.00065", "0.0123", "0.259", "1.87", "68.9"]);
}
