package identity

import (
	"context"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/alexedwards/argon2id"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
)

// Bounds of a password: characters at least, bytes at most.
const (
	MinPasswordLen = 8
	MaxPasswordLen = 256
)

// hashParams are pinned: the library's default depends on the machine.
func hashParams() *argon2id.Params {
	return &argon2id.Params{Memory: 19 * 1024, Iterations: 2, Parallelism: 1, SaltLength: 16, KeyLength: 32}
}

// HashPassword judges a new password and hashes it with argon2id. A bad one is
// a berth.InvalidError at path.
func HashPassword(path string, password redact.String) (redact.String, error) {
	text := password.Reveal()
	switch {
	case !utf8.ValidString(text) || utf8.RuneCountInString(text) < MinPasswordLen:
		return redact.String{}, berth.Invalid(path, "the password is too short", fmt.Sprintf("use at least %d characters", MinPasswordLen))
	case len(text) > MaxPasswordLen:
		return redact.String{}, berth.Invalid(path, "the password is too long", fmt.Sprintf("use at most %d bytes", MaxPasswordLen))
	}
	hash, err := argon2id.CreateHash(text, hashParams())
	if err != nil {
		return redact.String{}, errors.New("hash a password")
	}
	return redact.NewString(hash), nil
}

// passwords checks passwords, few at a time: each check takes 19 MiB.
type passwords struct {
	slots chan struct{}
	// nobody is the hash that stands for unknown users, so that they take as
	// long as known ones.
	nobody redact.String
}

func newPasswords() (*passwords, error) {
	nobody, err := HashPassword("", redact.NewString("nobody's password"))
	if err != nil {
		return nil, err
	}
	return &passwords{slots: make(chan struct{}, 4), nobody: nobody}, nil
}

// match reports whether password is the one of hash. A zero hash never matches
// and takes as long.
func (p *passwords) match(ctx context.Context, password, hash redact.String) (bool, error) {
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	case <-ctx.Done():
		return false, ctx.Err()
	}
	known := !hash.IsZero()
	if !known {
		hash = p.nobody
	}
	text := password.Reveal()
	if len(text) > MaxPasswordLen {
		text, known = "", false
	}
	ok, err := argon2id.ComparePasswordAndHash(text, hash.Reveal())
	if err != nil {
		return false, errors.New("a user's password hash in the database is damaged")
	}
	return ok && known, nil
}
