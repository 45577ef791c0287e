package identity

import (
	"context"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/alexedwards/argon2id"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
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

// turn waits for a slot; done gives it back.
func (p *passwords) turn(ctx context.Context) (done func(), err error) {
	select {
	case p.slots <- struct{}{}:
		return func() { <-p.slots }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// hash is HashPassword in its turn.
func (p *passwords) hash(ctx context.Context, path string, password redact.String) (redact.String, error) {
	done, err := p.turn(ctx)
	if err != nil {
		return redact.String{}, err
	}
	defer done()
	return HashPassword(path, password)
}

// match reports whether password is the one of hash. A zero hash never matches
// and takes as long.
func (p *passwords) match(ctx context.Context, password, hash redact.String) (bool, error) {
	done, err := p.turn(ctx)
	if err != nil {
		return false, err
	}
	defer done()
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

// ChangePassword gives the caller another password, after a look at the current
// one, and ends its other sessions. Guesses at the current one are slowed down
// as logins are. A wrong one, and a new one that will not do, are a
// berth.InvalidError; a user of an issuer is berth.ErrWrongState. A repeat, when
// the new password is in force already, changes nothing.
func (s *Service) ChangePassword(ctx context.Context, caller Caller, from berth.Actor, current, next redact.String) error {
	session := caller.Credential.Session()
	if session == "" {
		return berth.ErrLoginNeeded
	}
	user, hash, err := s.userWithHash(ctx, caller.User())
	if err != nil {
		return err
	}
	if err := user.MayHavePassword("", ""); err != nil {
		return err
	}
	hashed, err := s.passwords.hash(ctx, "new_password", next)
	if err != nil {
		return err
	}
	ok, err := s.guess(ctx, guess{name: user.Name, client: from.Client, hash: hash}, current)
	if err != nil {
		return err
	}
	if !ok {
		return s.wrongCurrent(ctx, from, user, hash, next)
	}
	_, err = s.accounts.SetPassword(ctx, store.SetPasswordParams{Actor: from, User: user.ID, Hash: hashed, Was: hash, KeepSession: session})
	return err
}

// wrongCurrent tells the repeat of a call whose answer was lost from a wrong
// password. What is tried here was counted as a guess.
func (s *Service) wrongCurrent(ctx context.Context, from berth.Actor, user berth.User, hash, next redact.String) error {
	repeat, err := s.passwords.match(ctx, next, hash)
	if err != nil || repeat {
		return err
	}
	if err := s.refuse(ctx, from, user, user.Name); err != nil {
		return err
	}
	return berth.Invalid("current_password", "it is not your password", "type the password that you log in with")
}

// ResetPassword gives any local user a new password and ends all its sessions.
// Where the user has that password already, nothing happens: it is a repeat.
func (s *Service) ResetPassword(ctx context.Context, from berth.Actor, id berth.UserID, password redact.String) error {
	user, hash, err := s.userWithHash(ctx, id)
	if err != nil {
		return err
	}
	if err := user.MayHavePassword("", ""); err != nil {
		return err
	}
	if same, err := s.passwords.match(ctx, password, hash); err != nil || same {
		return err
	}
	hashed, err := s.passwords.hash(ctx, "password", password)
	if err != nil {
		return err
	}
	_, err = s.accounts.SetPassword(ctx, store.SetPasswordParams{Actor: from, User: id, Hash: hashed})
	return err
}

// AddUser makes a user; without a password it is a service that cannot log in. A
// bad password is a berth.InvalidError, a taken name berth.ErrExists. once makes
// it repeatable.
func (s *Service) AddUser(ctx context.Context, from berth.Actor, user berth.User, password redact.String, once store.Once) (berth.User, error) {
	p := store.AddUserParams{Actor: from, User: user, Once: once}
	if !password.IsZero() {
		var err error
		if p.PasswordHash, err = s.passwords.hash(ctx, "password", password); err != nil {
			return berth.User{}, err
		}
	}
	return s.accounts.AddUser(ctx, p)
}

func (s *Service) userWithHash(ctx context.Context, id berth.UserID) (berth.User, redact.String, error) {
	user, err := s.accounts.UserByID(ctx, id)
	if err != nil {
		return user, redact.String{}, err
	}
	return s.accounts.UserByName(ctx, user.Name)
}
