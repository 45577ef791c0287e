package sqlite

import (
	"context"
	"fmt"
)

// Pragma asks both kinds of connection for a setting.
func (s *Store) Pragma(ctx context.Context, name string) (writer, reader string, err error) {
	if err := s.writer.QueryRowContext(ctx, "PRAGMA "+name).Scan(&writer); err != nil {
		return "", "", err
	}
	return writer, reader, s.readerPool.QueryRowContext(ctx, "PRAGMA "+name).Scan(&reader)
}

// LimitPages makes the disk full at n more pages; a negative n lifts the limit.
func (s *Store) LimitPages(ctx context.Context, n int) error {
	var used int
	if err := s.writer.QueryRowContext(ctx, "PRAGMA page_count").Scan(&used); err != nil {
		return err
	}
	limit := used + n
	if n < 0 {
		limit = 1 << 30
	}
	_, err := s.writer.ExecContext(ctx, fmt.Sprintf("PRAGMA max_page_count = %d", limit))
	return err
}

// HeadQueries are the statements whose cost must not grow with the queue.
func HeadQueries() []string { return []string{waitingClasses, headsFirst, headsAfter} }
