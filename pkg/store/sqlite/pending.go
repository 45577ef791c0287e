package sqlite

import (
	"context"
	"errors"

	"github.com/berth-dev/berth/pkg/store"
)

var errPending = errors.New("not built yet")

// Keeping and order (KEEPER).

func (s *Store) CompleteMany(context.Context, []store.CompleteParams) ([]store.CompleteManyAnswer, error) {
	return nil, errPending
}

func (s *Store) RenewMany(context.Context, []store.RenewParams) ([]store.RenewManyAnswer, error) {
	return nil, errPending
}
