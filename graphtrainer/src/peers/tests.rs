use super::*;

#[test]
fn workers_are_spread_in_runs_of_even_length() {
    for num_processes in 1..9 {
        for num_workers in 1..40 {
            let of: Vec<usize> = (0..num_workers)
                .map(|worker| process_of(worker, num_workers, num_processes))
                .collect();
            assert_eq!(of[0], 0, "the leader has the first worker");
            assert!(of.is_sorted());
            let count = |process| of.iter().filter(|own| **own == process).count();
            let counts: Vec<usize> = (0..num_processes).map(count).collect();
            let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            assert!(most - least <= 1, "{num_workers}: {counts:?}");
            assert_eq!(counts.iter().sum::<usize>(), num_workers);
        }
    }
}

#[test]
fn shares_cross_bit_by_bit() {
    for (loss_sum, count) in [(0.1 + 0.2, 3.0), (f64::NAN, -0.0), (f64::INFINITY, 1e-310)] {
        let report = Report::Ran {
            worker: 1,
            share: EpochShare { loss_sum, count },
            busy_ns: [1, 2, u64::MAX],
        };
        let text = serde_json::to_string(&report).unwrap();
        let Report::Ran { share, .. } = serde_json::from_str(&text).unwrap() else {
            panic!("another report");
        };
        assert_eq!(share.loss_sum.to_bits(), loss_sum.to_bits());
        assert_eq!(share.count.to_bits(), count.to_bits());
    }
}
