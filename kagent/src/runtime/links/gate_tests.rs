use super::*;

const NOW: u64 = 1_000 * SECOND;

fn gate(seed: u8, secret: Option<&str>) -> Gate {
    let seals = secret.map(|secret| key_of_seals(secret.as_bytes()));
    Gate::new([seed; 32], seals, 1_700_000_000_000_000)
}

fn host(number: u16) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], number))
}

/// A datagram from `from` arrives at `gate`.
fn answer(gate: &mut Gate, from: u16, bytes: &[u8]) -> Vec<u8> {
    match gate.examine(NOW, host(from), bytes) {
        Ok(Arrived::Answer(answer)) => answer,
        other => panic!("{other:?}"),
    }
}

/// Host 1 has sent a frame to host 2, with all that it took.
fn introduced(secret: Option<&str>) -> (Gate, Gate, Vec<u8>) {
    let (mut one, mut two) = (gate(1, secret), gate(2, secret));
    let first = one.wrap(NOW, host(2), b"call", 0).unwrap();
    let cookie = answer(&mut two, 1, &first);
    assert!(cookie.len() <= first.len(), "no more than what arrived");
    assert!(two.peers.is_empty(), "nothing is kept before the cookie");
    let again = answer(&mut one, 2, &cookie);
    let taken = two.examine(NOW, host(1), &again);
    assert_eq!(taken, Ok(Arrived::Frame(b"call")));
    (one, two, again)
}

#[test]
fn a_frame_passes_after_one_round_trip_and_the_answer_at_once() {
    for secret in [None, Some("a secret of some length")] {
        let (mut one, mut two, _) = introduced(secret);
        let reply = two.wrap(NOW, host(1), b"reply", 0).unwrap();
        let taken = one.examine(NOW, host(2), &reply);
        assert_eq!(taken, Ok(Arrived::Frame(b"reply")));
        let next = one.wrap(NOW + VALID / 2, host(2), b"next", 0).unwrap();
        let taken = two.examine(NOW + VALID / 2, host(1), &next);
        assert_eq!(taken, Ok(Arrived::Frame(b"next")), "half a minute later");
    }
}

#[test]
fn a_cookie_is_for_one_address_one_agent_and_a_minute() {
    let (mut one, mut two, again) = introduced(None);
    for other in [host(3), "198.51.100.1:1".parse().unwrap()] {
        let taken = two.examine(NOW, other, &again);
        assert!(matches!(taken, Ok(Arrived::Answer(_))), "{taken:?}");
    }
    let mut restarted = gate(3, None);
    answer(&mut restarted, 1, &again);
    let late = two.examine(NOW + VALID, host(1), &again);
    assert!(matches!(late, Ok(Arrived::Answer(_))), "{late:?}");
    // An attacker invents a cookie for host 1, which asked for none.
    let invented = gate(4, None).seal(NOW, host(1), 77, None);
    let taken = one.examine(NOW, host(2), &invented);
    assert_eq!(taken, Err(Dropped::Forged));
}

#[test]
fn a_cookie_is_asked_for_as_often_as_it_is_refused() {
    let (mut one, mut two) = (gate(1, None), gate(2, None));
    let first = one.wrap(NOW, host(2), b"call", 0).unwrap();
    let cookie = answer(&mut two, 1, &first);
    answer(&mut one, 2, &cookie);
    let twice = one.examine(NOW, host(2), &cookie);
    assert_eq!(twice, Ok(Arrived::Nothing), "the frame has gone again");
}

#[test]
fn without_the_secret_nothing_passes() {
    let secret = Some("a secret of some length");
    let (mut one, mut two, again) = introduced(secret);
    fn drops<'a>(gate: &mut Gate, bytes: &'a [u8]) -> Result<Arrived<'a>, Dropped> {
        gate.examine(NOW, host(1), bytes)
    }
    assert_eq!(drops(&mut two, &again), Err(Dropped::Replayed));
    let none = gate(5, None).wrap(NOW, host(2), b"call", 0).unwrap();
    assert_eq!(drops(&mut two, &none), Err(Dropped::NotSealed));
    let other = gate(5, Some("another secret")).wrap(NOW, host(2), b"call", 0);
    assert_eq!(drops(&mut two, &other.unwrap()), Err(Dropped::OtherSecret));
    let sealed = one.wrap(NOW, host(2), b"next", 0).unwrap();
    assert_eq!(drops(&mut gate(5, None), &sealed), Err(Dropped::Sealed));
    for place in 0..sealed.len() {
        let mut changed = sealed.clone();
        changed[place] ^= 1;
        assert!(drops(&mut two, &changed).is_err(), "byte {place}");
    }
    assert_eq!(drops(&mut two, &sealed), Ok(Arrived::Frame(b"next")));
}

#[test]
fn numbers_may_come_out_of_order_but_not_twice() {
    let mut seen = Seen::default();
    for (number, fresh) in [
        (100, true),
        (100, false),
        (102, true),
        (101, true),
        (101, false),
        (100, false),
        (166, true),
        (102, false),
        (103, true),
        (101, false),
        (230, true),
        (166, false),
        (165, false),
        (1000, true),
        (999, true),
        (230, false),
    ] {
        assert_eq!(seen.note(number, 0), fresh, "{number} after {seen:?}");
    }
}

#[test]
fn a_source_that_sends_too_much_is_cut_off_and_no_other() {
    let (mut one, mut two, _) = introduced(None);
    let mut passed = 1;
    for _ in 0..2 * BURST {
        let frame = one.wrap(NOW, host(2), b"flood", 0).unwrap();
        match two.examine(NOW, host(1), &frame) {
            Ok(Arrived::Frame(_)) => passed += 1,
            other => assert_eq!(other, Err(Dropped::TooMany)),
        }
    }
    assert_eq!(passed, BURST);
    let other: SocketAddr = "198.51.100.7:1".parse().unwrap();
    let mut three = gate(3, None);
    let first = three.wrap(NOW, host(2), b"call", 0).unwrap();
    let Ok(Arrived::Answer(cookie)) = two.examine(NOW, other, &first) else {
        panic!("no cookie");
    };
    let Ok(Arrived::Answer(again)) = three.examine(NOW, host(2), &cookie) else {
        panic!("not sent again");
    };
    let taken = two.examine(NOW, other, &again);
    assert_eq!(taken, Ok(Arrived::Frame(b"call")));
    let frame = one.wrap(NOW + SECOND, host(2), b"later", 0).unwrap();
    let taken = two.examine(NOW + SECOND, host(1), &frame);
    assert_eq!(taken, Ok(Arrived::Frame(b"later")));
}

#[test]
fn a_newer_cookie_begins_a_new_series() {
    let mut seen = Seen::default();
    for (number, cookie, fresh) in [
        (1000, 5, true),
        (1000, 5, false),
        // The sender has begun again, and its clock was set back meanwhile.
        (10, 5, false),
        (10, 6, true),
        (10, 6, false),
        (9, 6, false),
        (11, 6, true),
        // Everything of before is old, whatever its number.
        (1000, 5, false),
        (1001, 5, false),
        // In order, with a newer cookie; then one that was overtaken.
        (14, 8, true),
        (13, 7, true),
        (13, 8, false),
        (14, 7, false),
    ] {
        assert_eq!(
            seen.note(number, cookie),
            fresh,
            "{number} {cookie} {seen:?}"
        );
    }
}

#[test]
fn an_agent_whose_clock_was_ahead_is_accepted_when_it_restarts() {
    let secret = Some("a secret of some length");
    let (_, mut two, again) = introduced(secret);
    let seals = secret.map(|secret| key_of_seals(secret.as_bytes()));
    let mut one = Gate::new([9; 32], seals, 1_600_000_000_000_000);
    let later = NOW + 10 * MILLISECOND;
    let first = one.wrap(later, host(2), b"call", 0).unwrap();
    let Ok(Arrived::Answer(cookie)) = two.examine(later, host(1), &first) else {
        panic!("no cookie");
    };
    let Ok(Arrived::Answer(other)) = one.examine(later, host(2), &cookie) else {
        panic!("not sent again");
    };
    let taken = two.examine(later, host(1), &other);
    assert_eq!(taken, Ok(Arrived::Frame(b"call")));
    for copy in [&again, &other] {
        let taken = two.examine(later, host(1), copy);
        assert_eq!(taken, Err(Dropped::Replayed));
    }
}

#[test]
fn hosts_that_do_not_exist_keep_no_other_out() {
    for secret in [None, Some("a secret of some length")] {
        let (mut one, mut two, _) = introduced(secret);
        for number in 0..6000 {
            let to = host(10_000 + number);
            assert!(one.wrap(NOW, to, b"call", 7).is_some(), "{number}");
            if number % 100 == 0 {
                // Another user's call is not forgotten before it is answered.
                let first = one.wrap(NOW, host(3), b"other", 8).unwrap();
                let mut three = gate(3, secret);
                let cookie = answer(&mut three, 1, &first);
                answer(&mut one, 3, &cookie);
                one.peers.remove(&host(3));
                let waits = one.wrap(NOW, host(4), b"waits", 8);
                assert!(waits.is_some());
            }
        }
        assert!(one.peers.contains_key(&host(4)));
        assert_eq!(one.peers.len(), PEERS_MAX);
        let reply = two.wrap(NOW, host(1), b"reply", 0).unwrap();
        let taken = one.examine(NOW, host(2), &reply);
        assert_eq!(taken, Ok(Arrived::Frame(b"reply")));
    }
}

#[test]
fn the_hosts_that_are_known_are_bounded() {
    let mut gate = gate(1, Some("a secret of some length"));
    for number in 0..PEERS_MAX as u16 {
        let peer = gate.peer(NOW, host(number)).unwrap();
        peer.answered = true;
    }
    assert!(gate.wrap(NOW, host(60_000), b"call", 0).is_none());
    assert!(gate.wrap(NOW, host(7), b"call", 0).is_some(), "one of them");
    let later = NOW + VALID;
    assert!(gate.wrap(later, host(60_000), b"call", 0).is_some());
    assert_eq!(gate.peers.len(), PEERS_MAX);
}
