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
	"database/sql"
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

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	_ "github.com/jackc/pgx/v5/stdlib"
)

const (
	batch  = 100
	bounds = `SELECT l.resize, p.partition, p.first_position, p.next_position, p.cut
		FROM counterpoise_log.logs AS l LEFT JOIN counterpoise_log.partitions AS p
			ON p.log_id = l.log_id AND p.partition = ANY ($2::integer[]) WHERE l.name = $1`
	read = `SELECT position, coalesce(key, ''), value FROM counterpoise_log.messages
		WHERE log_id = (SELECT log_id FROM counterpoise_log.logs WHERE name = $1)
			AND partition = $2 AND position >= $3 AND position < $4 ORDER BY position LIMIT $5`
	appending = `SELECT watched FROM counterpoise_log.append($1, $2, $3, $4,
		$5::integer[], $6::bytea[], $7::text[], NULL, NULL)`
)

var errBindAgain = errors.New("the flow is over: bind again")

type partition struct {
	Partition, Epoch int64
	State            string
	Position, Cut    *string
	ReachedCut       bool    `json:"reached_cut"`
	WaitsFor         []int64 `json:"waits_for"`
}

type view struct {
	Revision, Resize int64
	Active, Draining bool
	Partitions       []partition
}

type item struct {
	Partition  int64  `json:"partition"`
	Epoch      int64  `json:"epoch"`
	Position   string `json:"position"`
	ReachedCut bool   `json:"reached_cut,omitempty"`
	Finished   bool   `json:"finished,omitempty"`
}

type body map[string]interface{}

type client struct{ base, token string }

// call repeats what was not answered, or not now. into is filled unless the answer is empty.
func (c *client) call(method, path string, content, into interface{}) error {
	sent, _ := json.Marshal(content)
	for {
		request, err := http.NewRequest(method, c.base+path, bytes.NewReader(sent))
		if err != nil {
			return err
		}
		if content == nil {
			request.Body = nil
		}
		request.Header.Set("Content-Type", "application/json")
		if c.token != "" {
			request.Header.Set("Authorization", "Bearer "+c.token)
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil || answer.StatusCode == 429 || answer.StatusCode == 503 {
			seconds := 1
			if err == nil {
				answer.Body.Close()
				if after, err := strconv.Atoi(answer.Header.Get("Retry-After")); err == nil {
					seconds = after
				}
			}
			time.Sleep(time.Duration(seconds) * time.Second)
			continue
		}
		received, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		switch {
		case err != nil:
			continue
		case answer.StatusCode == 204:
			return nil
		case answer.StatusCode < 300:
			if into == nil {
				return nil
			}
			return json.Unmarshal(received, into)
		}
		var problem struct{ Code, Reason, Detail string }
		_ = json.Unmarshal(received, &problem)
		if problem.Reason == "lease_expired" || problem.Reason == "restored" || problem.Code == "flow_not_found" {
			return errBindAgain
		}
		return fmt.Errorf("%s %s: %s", method, path, problem.Detail)
	}
}

// log is the built-in log, with credentials that are renewed before they end and when refused.
type log struct {
	c             *client
	purpose, name string
	count         int64
	ends          time.Time
	db            *sql.DB
}

func (l *log) connect(refused bool) (err error) {
	var answer struct {
		Log            string
		PartitionCount int64 `json:"partition_count"`
		Access         struct {
			URL       string
			ExpiresAt time.Time `json:"expires_at"`
		}
	}
	if err = l.c.call("POST", "/log-access", body{"purpose": l.purpose, "refused": refused}, &answer); err != nil {
		return err
	}
	if l.db != nil {
		l.db.Close()
	}
	l.name, l.count, l.ends = strings.TrimPrefix(answer.Log, "builtin:"), answer.PartitionCount, answer.Access.ExpiresAt
	l.db, err = sql.Open("pgx", answer.Access.URL)
	return err
}

// with runs statements; after an error that is not the log's own it connects anew.
func (l *log) with(run func(*sql.DB) error) error {
	for attempt := 1; ; attempt++ {
		if attempt > 1 || time.Until(l.ends) < 30*time.Second {
			if err := l.connect(attempt > 2); err != nil {
				return err
			}
		}
		err := run(l.db)
		var refused *pgconn.PgError
		if err == nil || attempt == 10 || errors.As(err, &refused) && strings.HasPrefix(refused.Code, "CP") {
			return err
		}
		time.Sleep(time.Duration(attempt) * 100 * time.Millisecond)
	}
}

// end is what bounds say of a partition; zeros if the log never had it.
type end struct{ first, next, cut int64 }

func (l *log) bounds(partitions []int64) (resize int64, ends map[int64]end, err error) {
	err = l.with(func(db *sql.DB) error {
		ends = map[int64]end{}
		rows, err := db.Query(bounds, l.name, partitions)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var number, first, next, cut sql.NullInt64
			if err := rows.Scan(&resize, &number, &first, &next, &cut); err != nil {
				return err
			}
			ends[number.Int64] = end{first.Int64, next.Int64, cut.Int64}
		}
		return rows.Err()
	})
	return
}

type message struct {
	position int64
	key      string
	value    []byte
}

func (l *log) read(partition, from, to int64) (found []message, err error) {
	err = l.with(func(db *sql.DB) error {
		found = nil
		rows, err := db.Query(read, l.name, partition, from, to, batch)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var one message
			if err := rows.Scan(&one.position, &one.key, &one.value); err != nil {
				return err
			}
			found = append(found, one)
		}
		return rows.Err()
	})
	if err == nil && (len(found) == 0 || found[0].position != from) {
		err = fmt.Errorf("partition %d lacks position %d", partition, from)
	}
	return
}

func number(position *string, otherwise int64) int64 {
	if position == nil {
		return otherwise
	}
	parsed, _ := strconv.ParseInt(*position, 10, 64)
	return parsed
}

func smaller(a, b int64) int64 {
	if a < b {
		return a
	}
	return b
}

// follow is one flow until its end. All that was read in a round is committed in it, so a
// partition that is revoked in the next one has no messages in hand.
func follow(c *client, flow string, v view, l *log, stop <-chan os.Signal) error {
	type grant struct{ epoch, position int64 }
	held, seq, idle, leaving, looks := map[int64]grant{}, 0, false, false, 0
	settle := func(what string, items []item) error {
		if len(items) == 0 {
			return nil
		}
		var answer struct {
			Results []struct{ Outcome string }
			Update  *view
		}
		seq++
		if err := c.call("POST", flow+"/"+what, body{"seq": seq, "partitions": items}, &answer); err != nil {
			return err
		}
		for nth, one := range answer.Results {
			if one.Outcome == "ok" {
				fmt.Printf("%s %d %s\n", what, items[nth].Partition, items[nth].Position)
			}
		}
		if answer.Update != nil {
			v = *answer.Update
		}
		return nil
	}
	poll := func(method, path string, content interface{}) error {
		next := view{Revision: -1}
		err := c.call(method, flow+path, content, &next)
		if err == nil && next.Revision >= 0 {
			v = next
		}
		return err
	}
	for {
		wait := "0"
		if idle {
			wait = "0.5"
		}
		if err := poll("GET", fmt.Sprintf("/updates?after=%d&wait=%s", v.Revision, wait), nil); err != nil {
			return err
		}
		select {
		case <-stop:
			if err := poll("POST", "/drain", body{}); err != nil {
				return err
			}
		default:
		}
		if v.Draining && !v.Active {
			break
		}
		if looks++; v.Draining && looks%5 == 0 {
			var status struct{ Status string }
			if err := c.call("GET", "/rebalance", nil, &status); err != nil {
				return err
			}
			leaving = status.Status == "Ready"
		}
		now, numbers := map[int64]grant{}, []int64{}
		for _, one := range v.Partitions {
			numbers = append(numbers, one.Partition)
		}
		resize, ends, err := l.bounds(numbers)
		if err != nil {
			return err
		}
		var commits, releases []item
		idle = true
		for _, one := range v.Partitions {
			if one.State == "warming" {
				continue
			}
			bound := ends[one.Partition]
			known, ok := held[one.Partition]
			if !ok || known.epoch != one.Epoch {
				known = grant{one.Epoch, number(one.Position, bound.first)}
			}
			at := func() item {
				reached := one.Cut != nil && !one.ReachedCut && known.position >= number(one.Cut, 0)
				return item{one.Partition, one.Epoch, strconv.FormatInt(known.position, 10), reached, false}
			}
			to := bound.next
			if len(one.WaitsFor) > 0 {
				to = smaller(to, number(one.Cut, 0))
			} else if resize > v.Resize {
				to = smaller(to, bound.cut)
			}
			switch {
			case one.State == "revoking" || leaving:
				releases = append(releases, at())
			case one.State == "retiring" && known.position >= bound.next:
				finished := at()
				finished.Finished = true
				releases = append(releases, finished)
			case known.position < to:
				messages, err := l.read(one.Partition, known.position, to)
				if err != nil {
					return err
				}
				for _, m := range messages {
					fmt.Printf("message %d %d %s %s\n", one.Partition, m.position, m.key, m.value) // the work
					known.position = m.position + 1
				}
				idle = false
				commits = append(commits, at())
			case at().ReachedCut:
				commits = append(commits, at())
			}
			now[one.Partition] = known
		}
		held = now
		if err := settle("commit", commits); err != nil {
			return err
		}
		if err := settle("release", releases); err != nil {
			return err
		}
		if leaving {
			break
		}
	}
	return c.call("DELETE", flow, nil, nil)
}

func consume(url, name string) error {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	seconds, err := strconv.ParseFloat(os.Getenv("LEASE_SECONDS"), 64)
	if err != nil {
		seconds = 10
	}
	for {
		c := &client{url, os.Getenv("COUNTERPOISE_TOKEN")}
		var bound struct {
			FlowID    string `json:"flow_id"`
			FlowToken string `json:"flow_token"`
			Update    view
		}
		settings := body{"client_name": name, "instance_id": name, "lease_seconds": seconds}
		if err := c.call("POST", "/flows", settings, &bound); err != nil {
			return err
		}
		c.token = bound.FlowToken
		l := &log{c: c, purpose: "read"}
		err := l.connect(false)
		if err == nil {
			err = follow(c, "/flows/"+bound.FlowID, bound.Update, l, stop)
		}
		if err != errBindAgain {
			return err
		}
	}
}

func publish(url, name string) error {
	l := &log{c: &client{url, os.Getenv("COUNTERPOISE_TOKEN")}, purpose: "publish"}
	if err := l.connect(false); err != nil {
		return err
	}
	var next int64
	err := l.with(func(db *sql.DB) error {
		return db.QueryRow("SELECT counterpoise_log.next_sequence($1, $2)", l.name, name).Scan(&next)
	})
	lines := bufio.NewScanner(os.Stdin)
	for more := true; err == nil && more; {
		var keys []string
		var values [][]byte
		for len(keys) < batch {
			if more = lines.Scan(); !more {
				break
			}
			key, value, _ := strings.Cut(lines.Text(), "\t")
			keys, values = append(keys, key), append(values, []byte(value))
		}
		if len(keys) == 0 {
			break
		}
		var watched []int64
		send := func(db *sql.DB) error {
			partitions := make([]int64, len(keys))
			for nth, key := range keys {
				partitions[nth] = int64(crc32.ChecksumIEEE([]byte(key))) % l.count
			}
			return db.QueryRow(appending, l.name, l.count, name, next, partitions,
				values, keys).Scan(pgtype.NewMap().SQLScanner(&watched))
		}
		err = l.with(send)
		var refused *pgconn.PgError
		if errors.As(err, &refused) && refused.Code == "CP001" { // resized meanwhile: route again
			l.count, _ = strconv.ParseInt(refused.Detail, 10, 64)
			err = l.with(send)
		}
		if err == nil && watched != nil {
			err = l.with(func(db *sql.DB) error {
				_, err := db.Exec("SELECT counterpoise_log.wake($1, $2::integer[])", l.name, watched)
				return err
			})
		}
		next += int64(len(keys))
	}
	return err
}

func main() {
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "usage: client consume|publish URL QUEUE NAME")
		os.Exit(2)
	}
	run := consume
	if os.Args[1] == "publish" {
		run = publish
	}
	if err := run(os.Args[2]+"/v1/queues/"+os.Args[3], os.Args[4]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
