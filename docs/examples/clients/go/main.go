// Counterpoise from Go: consumes and publishes with HTTP and Postgres alone.
//
//	client consume URL QUEUE INSTANCE       prints each message, then commits; SIGTERM drains
//	client publish URL QUEUE PUBLISHER      appends lines "KEY<tab>VALUE" of its input
//
// A key is taken from COUNTERPOISE_TOKEN. The steps are those of docs/protocol.md, *Life of a
// client*, the statements those of docs/log-sql.md. For queues with fixed partitions.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

var errBindAgain = errors.New("the flow is over: bind again")

// lease is how long a consumer may be silent, in seconds.
var lease = envSeconds("LEASE_SECONDS", 10)

// A call without an answer is repeated after a lease: a machine that dies ends no connection.
var caller = http.Client{Timeout: time.Duration(lease * float64(time.Second))}

func envSeconds(name string, usual float64) float64 {
	if given, err := strconv.ParseFloat(os.Getenv(name), 64); err == nil {
		return given
	}
	return usual
}

type fields map[string]any

// api is the HTTP API of one queue, with a key or with the token of a flow.
type api struct {
	queue, token string
	ofFlow       bool
}

// call repeats a call that was not answered, or not now. An answer without a body is nil.
func call[T any](c api, method, path string, content any) (*T, error) {
	var sent []byte
	if content != nil {
		sent, _ = json.Marshal(content)
	}
	for {
		request, err := http.NewRequest(method, c.queue+path, bytes.NewReader(sent))
		if err != nil {
			return nil, err
		}
		request.Header.Set("Content-Type", "application/json")
		if c.token != "" {
			request.Header.Set("Authorization", "Bearer "+c.token)
		}
		var received []byte
		pause := time.Second
		answer, err := caller.Do(request)
		if err == nil {
			received, err = io.ReadAll(answer.Body)
			answer.Body.Close()
			if after, _ := strconv.Atoi(answer.Header.Get("Retry-After")); after > 0 {
				pause = time.Duration(after) * time.Second
			}
		}
		if err == nil && (answer.StatusCode == 408 || answer.StatusCode == 429 || answer.StatusCode >= 500) {
			err = fmt.Errorf("%s %s: %s", method, path, answer.Status)
		}
		switch {
		case err != nil:
			fmt.Fprintf(os.Stderr, "%v; trying again\n", err)
			time.Sleep(pause)
		case answer.StatusCode == 204:
			return nil, nil
		case answer.StatusCode < 300:
			into := new(T)
			return into, json.Unmarshal(received, into)
		default:
			var problem struct{ Code, Reason, Detail string }
			_ = json.Unmarshal(received, &problem)
			again := problem.Reason == "lease_expired" || problem.Reason == "restored"
			// The token of a flow that is over is known to no call without the flow in its path.
			again = again || c.ofFlow && problem.Code == "unauthorized"
			if again || problem.Code == "flow_not_found" || problem.Code == "overtaken" {
				return nil, errBindAgain
			}
			return nil, fmt.Errorf("%s %s: %d %s", method, path, answer.StatusCode, problem.Detail)
		}
	}
}

// builtin is the built-in log, with credentials that are renewed before they end and when refused.
type builtin struct {
	api     api
	purpose string // "read" or "publish"
	count   int    // of partitions
	name    string
	ends    time.Time
	conn    *pgx.Conn
}

func (l *builtin) connect(refused bool) error {
	l.close()
	answer, err := call[struct {
		LogName        string `json:"log_name"`
		PartitionCount int    `json:"partition_count"`
		Access         struct {
			URL       string
			ExpiresAt time.Time `json:"expires_at"`
		}
	}](l.api, "POST", "/log-access", fields{"purpose": l.purpose, "refused": refused})
	if err != nil {
		return err
	}
	if answer.Access.URL == "" {
		return errors.New("the service gives no credentials for this log")
	}
	l.name, l.count = answer.LogName, answer.PartitionCount
	if l.conn, err = pgx.Connect(context.Background(), answer.Access.URL); err == nil {
		l.ends = answer.Access.ExpiresAt
	}
	return err
}

func (l *builtin) close() {
	if l.conn != nil {
		l.conn.Close(context.Background())
	}
	l.conn, l.ends = nil, time.Time{}
}

// query gives a statement the log's name as $1, and connects anew after errors that are not the log's own.
func query[Row any](l *builtin, statement string, arguments ...any) ([]Row, error) {
	for attempt := 1; ; attempt++ {
		var err error
		if time.Until(l.ends) < 30*time.Second {
			err = l.connect(attempt > 2)
		}
		if err == nil {
			var found []Row
			rows, _ := l.conn.Query(context.Background(), statement, append([]any{l.name}, arguments...)...)
			if found, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Row]); err == nil {
				return found, nil
			}
		}
		var refused *pgconn.PgError
		ours := errors.As(err, &refused) && strings.HasPrefix(refused.Code, "CP")
		if ours || attempt == 10 || errors.Is(err, errBindAgain) {
			return nil, err
		}
		l.ends = time.Time{}
		time.Sleep(time.Duration(attempt) * 100 * time.Millisecond)
	}
}

// bounds are what the log says of a partition: zeros if it has none of its messages yet.
type bounds struct {
	Resize           int64
	Partition        int
	First, Next, Cut int64
	Discarded        int64
}

func (l *builtin) bounds(partitions []int) ([]bounds, error) {
	return query[bounds](l, `SELECT l.resize, coalesce(p.partition, -1), coalesce(p.first_position, 0),
			coalesce(p.next_position, 0), coalesce(p.cut, 0), coalesce(p.discarded_position, 0)
		FROM counterpoise_log.logs AS l LEFT JOIN counterpoise_log.partitions AS p
			ON p.log_id = l.log_id AND p.partition = ANY ($2::integer[]) WHERE l.name = $1`, partitions)
}

type message struct {
	Position int64
	Key      string
	Value    []byte
}

type partition struct {
	Partition  int
	Epoch      int64
	State      string
	Position   *int64 `json:",string"`
	Cut        *int64 `json:",string"`
	ReachedCut bool   `json:"reached_cut"`
	WaitsFor   []int  `json:"waits_for"`
	Paused     any
}

type view struct {
	Revision         int64
	Resize           *int64 // nil in a queue without ordered resizes: nothing stops at cuts there
	Active, Draining bool
	Partitions       []partition
}

// item is what a commit or a release says of a partition.
type item struct {
	Partition  int   `json:"partition"`
	Epoch      int64 `json:"epoch"`
	Position   int64 `json:"position,string"`
	ReachedCut bool  `json:"reached_cut"`
	Finished   bool  `json:"finished,omitempty"`
}

// flow is one flow of a consumer. All that is read in a round is committed in it, so a partition
// that is revoked in the next one has no messages in hand.
type flow struct {
	api  api
	path string
	log  *builtin
	view view
	held map[int]item // where each partition is
	seq  int
}

// look takes the answer as the view, if there is one.
func (f *flow) look(method, path string, content any) error {
	next, err := call[view](f.api, method, f.path+path, content)
	if next != nil {
		f.view = *next
	}
	return err
}

// follow works until the flow is drained.
func (f *flow) follow(stop context.Context) error {
	wait, asked := 0.0, time.Now()
	for {
		if err := f.look("GET", fmt.Sprintf("/updates?after=%d&wait=%g", f.view.Revision, wait), nil); err != nil {
			return err
		}
		if stop.Err() != nil && !f.view.Draining {
			if err := f.look("POST", "/drain", fields{}); err != nil {
				return err
			}
		}
		leaving := f.view.Draining && !f.view.Active
		if f.view.Draining && f.view.Active && time.Since(asked) > time.Second {
			asked = time.Now()
			rebalance, err := call[struct{ Status string }](f.api, "GET", "/rebalance", nil)
			if err != nil {
				return err
			}
			leaving = rebalance.Status == "Ready" // nobody takes over
		}
		commits, releases, err := f.round(leaving)
		if err != nil {
			return err
		}
		if err := f.settle("commit", commits); err != nil {
			return err
		}
		if err := f.settle("release", releases); err != nil {
			return err
		}
		if leaving {
			_, err := call[any](f.api, "DELETE", f.path, nil)
			return err
		}
		if wait = 0.5; len(commits) > 0 {
			wait = 0
		}
	}
}

// round reads each partition once.
func (f *flow) round(leaving bool) (commits, releases []item, err error) {
	var numbers []int
	for _, one := range f.view.Partitions {
		numbers = append(numbers, one.Partition)
	}
	found, err := f.log.bounds(numbers)
	if err != nil {
		return nil, nil, err
	}
	if len(found) == 0 {
		return nil, nil, errors.New("the log is gone")
	}
	logs := map[int]bounds{}
	for _, one := range found {
		logs[one.Partition] = one
	}
	newer := f.view.Resize != nil && found[0].Resize > *f.view.Resize
	held := map[int]item{}
	for _, one := range f.view.Partitions {
		if one.State == "warming" {
			continue
		}
		log := logs[one.Partition]
		before, known := f.held[one.Partition]
		if !known || before.Epoch != one.Epoch {
			before = item{Partition: one.Partition, Epoch: one.Epoch, Position: log.First}
			if one.Position != nil {
				before.Position = *one.Position
			}
		}
		now, revoked := before, one.State == "revoking" || leaving
		if !revoked && now.Position > log.Next {
			return nil, nil, fmt.Errorf("the log ends at %d of partition %d, before position %d", log.Next, one.Partition, now.Position)
		}
		if to := end(one, log, newer); now.Position < to && !revoked && one.Paused == nil {
			if now.Position, err = f.work(one.Partition, now.Position, to); err != nil {
				return nil, nil, err
			}
		}
		now.ReachedCut = one.Cut != nil && !one.ReachedCut && now.Position >= *one.Cut
		now.Finished = one.State == "retiring" && now.Position >= log.Next
		held[one.Partition] = now
		if revoked || now.Finished {
			releases = append(releases, now)
		} else if now.Position > before.Position || now.ReachedCut {
			commits = append(commits, now)
		}
	}
	f.held = held
	return commits, releases, nil
}

// end is how far a partition may be read: to its end, or to a cut that others have not reached.
func end(one partition, log bounds, newerResize bool) int64 {
	to := log.Next
	if len(one.WaitsFor) > 0 && *one.Cut < to {
		to = *one.Cut
	} else if newerResize && log.Cut < to {
		to = log.Cut
	}
	return to
}

// work processes at most 100 messages. It returns the position after the last of them.
func (f *flow) work(partition int, from, to int64) (int64, error) {
	found, err := query[message](f.log, `SELECT position, coalesce(key, ''), value FROM counterpoise_log.messages
		WHERE log_id = (SELECT log_id FROM counterpoise_log.logs WHERE name = $1)
			AND partition = $2 AND position >= $3 AND position < $4 ORDER BY position LIMIT 100`, partition, from, to)
	if err == nil && (len(found) == 0 || found[0].Position != from) {
		var now []bounds
		if now, err = f.log.bounds([]int{partition}); err == nil {
			if len(now) > 0 && from < now[0].Discarded {
				return now[0].Discarded, nil // an administrator has discarded what was before
			}
			err = fmt.Errorf("partition %d lacks position %d", partition, from)
		}
	}
	if err != nil {
		return from, err
	}
	for _, one := range found {
		fmt.Printf("message %d %d %s %s\n", partition, one.Position, one.Key, one.Value) // the work
	}
	return found[len(found)-1].Position + 1, nil
}

// settle sends commits or releases, and prints those that hold.
func (f *flow) settle(what string, items []item) error {
	if len(items) == 0 {
		return nil
	}
	f.seq++
	answer, err := call[struct {
		Results []struct{ Outcome string }
		Update  *view
	}](f.api, "POST", f.path+"/"+what, fields{"seq": f.seq, "partitions": items})
	if err != nil {
		return err
	}
	for n, one := range answer.Results {
		if one.Outcome == "ok" {
			fmt.Printf("%s %d %d\n", what, items[n].Partition, items[n].Position)
		}
	}
	if answer.Update != nil {
		f.view = *answer.Update
	}
	return nil
}

func consume(c api, name string) error {
	stop, _ := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	// A bind that arrives late ends no later flow of this process.
	binder := fmt.Sprintf("%d-%d", os.Getpid(), time.Now().UnixNano())
	for attempt := 1; ; attempt++ {
		bound, err := call[struct {
			FlowID    string `json:"flow_id"`
			FlowToken string `json:"flow_token"`
			Update    view
		}](c, "POST", "/flows", fields{"client_name": name, "instance_id": name, "lease_seconds": lease,
			"binder": binder, "attempt": attempt})
		if err == nil {
			own := api{c.queue, bound.FlowToken, true}
			log := &builtin{api: own, purpose: "read"}
			f := &flow{api: own, path: "/flows/" + bound.FlowID, log: log, view: bound.Update}
			err = f.follow(stop)
			log.close()
		}
		if !errors.Is(err, errBindAgain) {
			return err
		}
		if stop.Err() != nil {
			return nil
		}
	}
}

// publisher numbers its messages, so that a repeated append leaves out what the log has.
type publisher struct {
	log  *builtin
	name string
	next int64 // the number of the next message
}

func (p *publisher) append(keys []string, values [][]byte) error {
	for {
		partitions := make([]int, len(keys))
		for n, key := range keys {
			partitions[n] = int(crc32.ChecksumIEEE([]byte(key)) % uint32(p.log.count))
		}
		answer, err := query[struct{ Watched []int }](p.log, `SELECT watched FROM counterpoise_log.append(
			$1, $2, $3, $4, $5::integer[], $6::bytea[], $7::text[], NULL, NULL)`,
			p.log.count, p.name, p.next, partitions, values, keys)
		var refused *pgconn.PgError
		if errors.As(err, &refused) && refused.Code == "CP001" { // resized meanwhile: route again
			p.log.count, _ = strconv.Atoi(refused.Detail)
			continue
		}
		if err == nil && answer[0].Watched != nil {
			_, err = query[struct{ Void string }](p.log, "SELECT counterpoise_log.wake($1, $2::integer[])", answer[0].Watched)
		}
		p.next += int64(len(keys))
		return err
	}
}

func publish(c api, name string) error {
	p := publisher{log: &builtin{api: c, purpose: "publish"}, name: name}
	defer p.log.close()
	next, err := query[struct{ Number int64 }](p.log, "SELECT counterpoise_log.next_sequence($1, $2)", name)
	if err != nil {
		return err
	}
	p.next = next[0].Number
	var keys []string
	var values [][]byte
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 17<<20) // a value has at most 16 MiB
	for more := true; more; {
		if more = lines.Scan(); more {
			key, value, _ := strings.Cut(lines.Text(), "\t")
			keys, values = append(keys, key), append(values, []byte(value))
		}
		if len(keys) == 100 || len(keys) > 0 && !more {
			if err := p.append(keys, values); err != nil {
				return err
			}
			keys, values = nil, nil
		}
	}
	return lines.Err()
}

func main() {
	run := map[string]func(api, string) error{"consume": consume, "publish": publish}
	if len(os.Args) != 5 || run[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: client consume|publish URL QUEUE NAME")
		os.Exit(2)
	}
	queue := api{os.Args[2] + "/v1/queues/" + os.Args[3], os.Getenv("COUNTERPOISE_TOKEN"), false}
	if err := run[os.Args[1]](queue, os.Args[4]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
