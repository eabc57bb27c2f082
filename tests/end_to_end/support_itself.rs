//! Tests of the proxies: if a proxy did not inject its faults, the other tests would prove nothing.

use std::io::{Read, Write};

use testing::http;

use crate::prelude::*;

fn connect(proxy: &RedisProxy) -> TcpStream {
    let address = proxy.url().trim_start_matches("redis://").to_owned();
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    stream
}

fn answer(stream: &mut TcpStream) -> String {
    let mut answer = [0; 64];
    let n = stream.read(&mut answer).unwrap();
    String::from_utf8_lossy(&answer[..n]).into_owned()
}

#[test]
fn redis_proxy_sees_a_command_split_over_two_reads() {
    let redis = RedisServer::start(&[]);
    let proxy = RedisProxy::start(redis.address());
    let (report, reports) = mpsc::channel();
    proxy.at(2, "needle", When::Before, move || {
        report.send(()).unwrap();
        Then::Cut
    });

    let mut stream = connect(&proxy);
    stream.write_all(b"*2\r\n$4\r\nECHO\r\n$6\r\nneedle\r\n*3\r\n$3\r\nSET\r\n$6\r\nnee").unwrap();
    assert_eq!(answer(&mut stream), "$6\r\nneedle\r\n");
    assert!(reports.try_recv().is_err(), "the proxy acted on the first match");
    stream.write_all(b"dle\r\n$1\r\n1\r\n*1\r\n$4\r\nPING\r\n").unwrap();
    assert_eq!(answer(&mut stream), "", "the connection was not cut");
    reports.recv_timeout(SOON).unwrap();
    assert_eq!(redis.query::<Option<String>>(&["GET", "needle"]), None, "the command got through");
}

#[test]
fn redis_proxy_drops_the_answer_of_a_forwarded_command() {
    let redis = RedisServer::start(&[]);
    let proxy = RedisProxy::start(redis.address());
    proxy.at(1, "key", When::Before, || Then::SwallowAnswers);

    let mut stream = connect(&proxy);
    stream.write_all(b"*1\r\n$4\r\nPING\r\n").unwrap();
    assert_eq!(answer(&mut stream), "+PONG\r\n");
    stream.write_all(b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$1\r\n1\r\n").unwrap();
    wait_for(
        "Redis has the key",
        || redis.query::<Option<String>>(&["GET", "key"]),
        |value| value.as_deref() == Some("1"),
    );
    stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    assert!(stream.read(&mut [0; 64]).is_err(), "the response was forwarded");
}

#[test]
fn redis_proxy_acts_after_forwarding_a_command() {
    let redis = RedisServer::start(&[]);
    let proxy = RedisProxy::start(redis.address());
    let (report, reports) = mpsc::channel();
    let mut connection = redis.connection();
    proxy.at(1, "key", When::After, move || {
        let value = eventually("Redis has the key", SOON, || {
            let value: Option<String> =
                redis::cmd("GET").arg("key").query(&mut connection).unwrap();
            value.ok_or("nothing")
        });
        report.send(value).unwrap();
        Then::Pass
    });

    let mut stream = connect(&proxy);
    stream.write_all(b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$1\r\n1\r\n").unwrap();
    assert_eq!(reports.recv_timeout(SOON).unwrap(), "1");
    assert_eq!(answer(&mut stream), "+OK\r\n");
}

#[test]
fn http_proxy_simulates_every_outage() {
    const LINE: &[u8] = b"unique_user_event,a=b value=3 60000000000\n";
    let server = HttpProxy::start(None);
    let address = server.address();
    let mut proxy = HttpProxy::start(Some(address));
    let write = {
        let address = proxy.address();
        move || {
            http::answer(http::post(address, "/write?db=eds").body(LINE))
                .map(|answer| answer.status)
        }
    };

    assert_eq!(write().unwrap(), 204);
    proxy.set(Mode::Answer(503));
    assert_eq!(write().unwrap(), 503);
    proxy.set(Mode::Refuse);
    assert!(write().unwrap_err().is_connect());
    proxy.set(Mode::Hang);
    let hanging = [std::thread::spawn(write), std::thread::spawn(write)];
    eventually("two writes hang", SOON, || when(proxy.writes().len() == 4, proxy.writes().len()));
    proxy.set(Mode::Pass);
    for write in hanging {
        assert!(write.join().unwrap().is_err());
    }
    assert_eq!(proxy.take_under_way_max(), 2);
    assert_eq!(write().unwrap(), 204);
    assert_eq!(proxy.take_under_way_max(), 1);

    let confirmed: Vec<_> = proxy.writes().iter().map(|write| write.confirmed).collect();
    assert_eq!(confirmed, [true, false, false, false, true]);
    assert_eq!(server.writes().len(), 2);
    assert_eq!(read_back::written(LINE).into_values().collect::<Vec<_>>(), [3]);
}

#[test]
fn http_proxy_loses_answers_and_asks_for_delay() {
    const LINE: &[u8] = b"unique_user_event,a=b value=3 60000000000\n";
    let server = HttpProxy::start(None);
    let mut proxy = HttpProxy::start(Some(server.address()));
    let address = proxy.address();
    let write = move || http::answer(http::post(address, "/write?db=eds").body(LINE));

    proxy.set(Mode::TakeAndCut);
    assert!(write().is_err());
    proxy.set(Mode::TakeAndAnswer(503));
    assert_eq!(write().unwrap().status, 503);
    proxy.set(Mode::Trickle);
    assert_eq!(write().unwrap().status, 204);
    proxy.set(Mode::TakeAndHang);
    let hanging = std::thread::spawn(write);
    eventually("the server has received the write", SOON, || {
        when(server.writes().len() == 4, server.writes().len())
    });
    proxy.set(Mode::AnswerLater(429, 7));
    assert!(hanging.join().unwrap().is_err());
    let answer = write().unwrap();
    assert_eq!(answer.status, 429);
    assert_eq!(answer.headers["retry-after"], "7");
    let fates: Vec<_> = proxy.writes().iter().map(|write| (write.taken, write.confirmed)).collect();
    let lost = (true, false);
    assert_eq!(fates, [lost, lost, (true, true), lost, (false, false)]);
}

#[test]
fn tcp_proxy_stalls_cuts_slows_and_redirects() {
    let servers = [RedisServer::start(&[]), RedisServer::start(&[])];
    for (name, server) in ["first", "second"].iter().zip(&servers) {
        server.query::<()>(&["SET", "name", name]);
    }
    let proxy = TcpProxy::start(servers[0].address());
    let connect = || TcpStream::connect(proxy.address()).unwrap();
    let ask = |stream: &mut TcpStream| stream.write_all(b"*2\r\n$3\r\nGET\r\n$4\r\nname\r\n");
    let mut stream = connect();
    let mut heard = [0; 11];
    ask(&mut stream).unwrap();
    stream.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"$5\r\nfirst\r\n");

    // Bytes sent during the stall are delivered after it.
    proxy.set(Traffic::Stall);
    ask(&mut stream).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    assert!(stream.read(&mut heard).is_err());
    stream.set_read_timeout(None).unwrap();
    proxy.set(Traffic::Trickle(1, Duration::from_millis(1)));
    stream.read_exact(&mut heard[..1]).unwrap();
    stream.read_exact(&mut heard[1..]).unwrap();
    assert_eq!(&heard, b"$5\r\nfirst\r\n");

    proxy.set(Traffic::Cut);
    assert!(matches!(stream.read(&mut heard), Ok(0) | Err(_)));
    assert!(matches!(connect().read(&mut heard), Ok(0) | Err(_)));

    proxy.set(Traffic::Open);
    let mut stream = connect();
    ask(&mut stream).unwrap();
    stream.read_exact(&mut heard).unwrap();
    proxy.lead_to(servers[1].address());
    assert!(matches!(stream.read(&mut heard), Ok(0) | Err(_)));
    let mut stream = connect();
    ask(&mut stream).unwrap();
    let mut heard = [0; 12];
    stream.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"$6\r\nsecond\r\n");
}

#[test]
fn a_comparison_of_points_shows_differences() {
    let mut expected = Expected::default();
    expected.receive(b"a=b value=u 1\na=b value=u 2\na=b value=v 60000000000");
    let points = expected.points();
    assert_eq!(compare(&points, &points), Ok(()));
    let mut changed = points.clone();
    changed.pop_last();
    *changed.first_entry().unwrap().get_mut() += 1;
    let report = compare(&points, &changed).unwrap_err();
    assert_contains(&report, ["1 of 4 points missing", "expected Some(2), found Some(3)"]);
    assert!(compare(&changed, &points).unwrap_err().contains("1 of 3 points unexpected"));
}
