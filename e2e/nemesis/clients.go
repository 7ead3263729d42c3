package nemesis

import (
	"context"
	"fmt"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/e2e/cluster"
)

// Guest numbers of the load (load.Guests), one for each kind that pushes.
const (
	stormGuest  = 0
	zombieGuest = 1
	floodGuest  = 2
)

const guestPatience = 40 * time.Second

// allRows lists every row of the counters, and so every shard.
func (a *act) allRows() []int {
	rows := make([]int, a.Load.CounterRows())
	for i := range rows {
		rows[i] = i
	}
	return rows
}

// retryStorm is a client whose tries mostly end before their answer comes: every
// push is sent several times and must count once.
func retryStorm(ctx context.Context, a *act) error {
	const tryFor = 20 * time.Millisecond
	a.target = cluster.Client
	ctx, cancel := context.WithTimeout(ctx, guestPatience)
	defer cancel()
	c, err := a.Load.Guest(ctx, stormGuest, client.Options{AttemptTimeout: tryFor})
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Push(ctx, a.allRows()); err != nil { // opens the sessions
		return err
	}
	lift := a.Net.Apply(cluster.LinkPolicy{Jitter: 12 * time.Millisecond},
		cluster.Between([]string{cluster.Client}, a.Cluster.Names())...)
	calm := time.AfterFunc(2*time.Second, lift)
	defer func() {
		calm.Stop()
		lift()
	}()
	late, n := 0, 0
	for until := time.Now().Add(1500 * time.Millisecond); time.Now().Before(until); n++ {
		took, err := c.Push(ctx, a.allRows())
		if err != nil {
			return err
		}
		if took > tryFor {
			late++
		}
	}
	if late > 0 {
		a.saw("%d of %d pushes took more than one try", late, n)
	}
	return nil
}

// zombieClient is two incarnations of one client id. Once the second has opened its
// sessions, the first must not change a row any more.
func zombieClient(ctx context.Context, a *act) error {
	a.target = cluster.Client
	ctx, cancel := context.WithTimeout(ctx, guestPatience)
	defer cancel()
	var id rowraft.ClientID
	for i := range id {
		id[i] = byte(a.rng.Uint32())
	}
	old, err := a.Load.Guest(ctx, zombieGuest, client.Options{ClientID: id})
	if err != nil {
		return err
	}
	defer old.Close()
	if _, err := old.Push(ctx, a.allRows()); err != nil {
		return fmt.Errorf("first incarnation: %w", err)
	}
	young, err := a.Load.Guest(ctx, zombieGuest, client.Options{ClientID: id})
	if err != nil {
		return err
	}
	defer young.Close()
	if _, err := young.Push(ctx, a.allRows()); err != nil {
		return fmt.Errorf("second incarnation: %w", err)
	}
	old.Fenced = true
	for range 3 {
		_, err = old.Push(ctx, a.allRows())
		if err == nil {
			return fmt.Errorf("VIOLATION: a push of the first incarnation was acknowledged after the second had pushed")
		}
		if code := rowraft.CodeOf(err); code != rowraft.CodeSessionExpired {
			return fmt.Errorf("a fenced push is refused with %v, want SessionExpired: %w", code, err)
		}
		if _, err := young.Push(ctx, a.allRows()); err != nil {
			return fmt.Errorf("second incarnation, after the first was refused: %w", err)
		}
	}
	a.saw("the first incarnation was refused: SessionExpired")
	return nil
}
